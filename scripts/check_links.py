#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that every relative link of the Markdown pages leads to a file."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def pages():
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def dead_links(page):
    for link in LINK.findall(page.read_text()):
        if "://" not in link and not (page.parent / link).exists():
            yield link


def main():
    found = [(page, link) for page in pages() for link in dead_links(page)]
    for page, link in found:
        print(f"{page.relative_to(ROOT)}: dead link {link}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
