# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The pages' Python runs as written and prints what they say."""

import contextlib
import io
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "python.md", *sorted((ROOT / "docs").glob("coming-from-*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.stem)
def test_a_page_runs_as_written(page):
    namespace = {}
    for code, expected in BLOCK.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), namespace)
        assert printed.getvalue() == expected


def test_the_reference_is_current():
    subprocess.run([sys.executable, ROOT / "scripts" / "python_reference.py", "--check"], check=True)
