#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# One layout, its plan under two placements, the ring tutorial, and the proof that four ranks equal one.
set -euo pipefail
cd "$(dirname "$0")/.."

marble=build/cpu/tools/marble/marble
pack=(bagel-mix --tokens 16384 --seed 1)

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

show $marble layout "${pack[@]}"
show $marble plan "${pack[@]}" --ring 4 --placement contiguous
show $marble plan "${pack[@]}" --ring 4 --placement ptrr
show build/cpu/examples/ring_tutorial
show $marble verify "${pack[@]}" --ring 4 --heads 8/4 --dim 64 --dtype bf16
