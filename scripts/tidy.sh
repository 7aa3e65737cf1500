#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# clang-tidy over the library's host sources, with the compile commands of the cpu preset.
set -euo pipefail
cd "$(dirname "$0")/.."

grep -o '"file": "[^"]*"' build/cpu/compile_commands.json | cut -d '"' -f 4 | grep -E "^$PWD/src/" |
  xargs -P "${1:-$(nproc)}" -n 1 clang-tidy-14 -p build/cpu --quiet --extra-arg=-Wno-unknown-warning-option
