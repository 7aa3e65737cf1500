#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps and judges what ptxas says of the kernels.

check_ptxas.py record DIR COMMAND...   runs an nvcc command, keeping its ptxas lines in DIR/<object>.txt
check_ptxas.py check DIR               fails when any kernel spills registers or a wgmma was serialised (C75xx)
"""

import pathlib
import re
import subprocess
import sys

SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
WARNING = re.compile(r"\bC7[56]\d\d\b")
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
USED = re.compile(r"Used (\d+) registers")


def record(folder: pathlib.Path, command: list[str]) -> int:
    """Runs the command; what it prints about ptxas goes to the log, the rest to stderr."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    lines = done.stderr.splitlines()
    log = [line for line in lines if line.startswith("ptxas") or "bytes stack frame" in line]
    rest = [line for line in lines if line not in log or WARNING.search(line) or "error" in line]
    if rest:
        print("\n".join(rest), file=sys.stderr)
    if "-o" in command and done.returncode == 0:
        folder.mkdir(parents=True, exist_ok=True)
        name = pathlib.Path(command[command.index("-o") + 1]).name
        (folder / f"{name}.txt").write_text("\n".join(log) + "\n")
    return done.returncode


def check(folder: pathlib.Path) -> int:
    """One line a kernel; exit status 1 when there is something wrong, or nothing at all."""
    logs = sorted(folder.glob("*.txt"))
    failures, kernels = [], 0
    for log in logs:
        entry = "?"
        for line in log.read_text().splitlines():
            if found := ENTRY.search(line):
                entry = f"{log.stem}: {found[1]} for {found[2]}"
                kernels += 1
            if (found := SPILL.search(line)) and (int(found[1]) or int(found[2])):
                failures.append(f"{entry} spills: {line.strip()}")
            if WARNING.search(line):
                failures.append(f"{log.stem}: {line.strip()}")
            if found := USED.search(line):
                print(f"{found[1]:>4} registers  {entry}")
    for failure in failures:
        print(failure)
    print(f"{kernels} kernels in {len(logs)} files, {len(failures)} problems")
    return 1 if failures or kernels == 0 else 0


if __name__ == "__main__":
    verb, folder, *command = sys.argv[1:]
    sys.exit(record(pathlib.Path(folder), command) if verb == "record" else check(pathlib.Path(folder)))
