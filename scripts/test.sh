#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# All that must hold on a machine without a GPU. `test.sh` runs every stage; `test.sh cpu asan` runs those named.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
closing=()

# The cases that the sanitizers run: everything but the long proofs.
small='exactness|CommandLine|Example|Install'

build_and_test() {
  local preset=$1
  shift
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" -j "$jobs" -- --quiet
  local log=build/$preset/ctest.log
  ctest --preset "$preset" -j "$jobs" "$@" | tee "$log"
  closing+=("$preset: $(grep -E '^[0-9]+% tests passed' "$log")")
}

stage_cpu() { build_and_test cpu -L 'cpu|mpi'; }
stage_asan() { build_and_test asan -L cpu -E "$small"; }
stage_tsan() { build_and_test tsan -L cpu -E "$small"; }

stage_static() {
  python3 scripts/check_layers.py
  python3 scripts/check_links.py
  scripts/sources.sh | xargs clang-format-14 --dry-run --Werror
  cmake --preset cpu >/dev/null
  cmake --build --preset cpu -j "$jobs" --target all_verify_interface_header_sets -- --quiet
  scripts/tidy.sh "$jobs"
  closing+=("static: layers, formatting, headers alone and clang-tidy passed")
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(static cpu asan tsan)
for stage in "${stages[@]}"; do
  printf '\n== %s\n' "$stage"
  "stage_$stage"
done

echo
printf '%s\n' "${closing[@]}"
