# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The package as users see it: names, types, documentation, no global state."""

import ast
import inspect
import pathlib
import subprocess
import sys

import marble
import pytest
from marble import _native

PACKAGE = pathlib.Path(marble.__file__).parent


def test_it_is_typed_and_its_stub_names_what_the_module_has():
    assert (PACKAGE / "py.typed").exists()
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    stub = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    module = {name for name in dir(_native) if not name.startswith("_")}
    assert stub == module


@pytest.mark.parametrize("name", marble.__all__)
def test_public_names_are_documented_and_annotated(name):
    thing = getattr(marble, name)
    assert inspect.getdoc(thing), name
    members = (
        [thing]
        if inspect.isfunction(thing)
        else [member for key, member in vars(thing).items() if inspect.isfunction(member) and not key.startswith("_")]
    )
    for member in members:
        assert inspect.getdoc(member), f"{name}.{member.__name__}"
        signature = inspect.signature(member)
        assert signature.return_annotation is not inspect.Signature.empty, member
        for parameter in signature.parameters.values():
            assert parameter.name == "self" or parameter.annotation is not inspect.Parameter.empty, (member, parameter)


def test_transformers_is_imported_only_by_its_adapter():
    code = "import sys, marble; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_native_module_links_no_torch():
    (library,) = PACKAGE.glob("_native*.so")
    assert b"libtorch" not in library.read_bytes()
