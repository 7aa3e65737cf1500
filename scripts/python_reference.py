#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/python-api.md from the package's docstrings: scripts/python_reference.py [--check]"""

import inspect
import pathlib
import re
import sys

import marble
import marble.hf
import marble.readers
import marble.sharding

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "python-api.md"
HEAD = """# Python reference

Written by scripts/python_reference.py from the docstrings. The guide is [python.md](python.md).
"""


def signature(thing):
    """One parameter a line when it is long; annotations as written."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))
    return text if len(text) < 90 else text.replace(", ", ",\n    ").replace("(", "(\n    ", 1)


def entry(name, thing, level):
    """A heading, the signature and the docstring."""
    lines = [f"{'#' * level} `{name}`", ""]
    if inspect.isroutine(thing):
        lines += ["```py", f"{name.split('.')[-1]}{signature(thing)}", "```", ""]
    lines += [inspect.getdoc(thing) or "", ""]
    return lines


def members(name, cls):
    """Public methods and properties, in the order of the source."""
    for key, member in vars(cls).items():
        if key.startswith("_"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        if inspect.isfunction(member) or isinstance(member, property):
            yield from entry(f"{name}.{key}", member, 3)


def reference():
    """The page."""
    lines = [HEAD]
    for name in marble.__all__:
        thing = getattr(marble, name)
        lines += entry(f"marble.{name}", thing, 2)
        if inspect.isclass(thing) and not issubclass(thing, (Exception, tuple)):
            lines += members(name, thing)
    for module, names in (
        (marble.sharding, ["shard", "unshard", "redistribute"]),
        (marble.readers, ["read_flashmask", "read_magi_ranges", "read_bagel_splits"]),
        (marble.hf, ["attention_model", "image_layout", "shard_inputs"]),
    ):
        lines += [f"## `{module.__name__}`", "", inspect.getdoc(module), ""]
        for name in names:
            lines += entry(f"{module.__name__}.{name}", getattr(module, name), 3)
    return "\n".join(lines).rstrip() + "\n"


def main():
    page = reference()
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        sys.exit("docs/python-api.md is stale: run scripts/python_reference.py")


if __name__ == "__main__":
    main()
