#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# All that must hold on a machine without a GPU. `test.sh` runs every stage; `test.sh cpu asan` runs those named.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
strict=-DMARBLE_WARNINGS_AS_ERRORS=ON  # here, where the compiler is known; newer ones warn of other things
closing=()

build_and_test() {
  local preset=$1
  shift
  cmake --preset "$preset" $strict >/dev/null
  cmake --build --preset "$preset" -j "$jobs" -- --quiet
  local log=build/$preset/ctest.log
  ctest --preset "$preset" -j "$jobs" "$@" | tee "$log" | sed -u -E '/^ +Start /d; s/ \.{4,}/ .../'
  closing+=("$preset: $(grep -E '^[0-9]+% tests passed' "$log")")
}

stage_cpu() {
  build_and_test cpu -L 'cpu|mpi'
  closing+=("$(grep -hE '^exactness:' build/cpu/Testing/Temporary/LastTest.log)")
}

# Sanitizers run every case but whole packs, backends on full blocks, and the long proofs, of which they run one in 48.
stage_sanitizer() {
  build_and_test "$1" -L cpu -E 'exactness|Numbers|FewLongSamples|BackendConformance.*/avx(2|512)$'
  GTEST_TOTAL_SHARDS=48 GTEST_SHARD_INDEX=11 "build/$1/tests/exactness/exactness_test" --gtest_brief=1
}
stage_asan() { stage_sanitizer asan; }
stage_tsan() { stage_sanitizer tsan; }

# Compiles what only a GPU can run, and judges the kernels by what ptxas says of them. `make gpu-test` runs it.
stage_cuda() {
  if ! command -v nvcc >/dev/null; then
    closing+=("cuda: skipped: no nvcc")
    return
  fi
  cmake --preset cuda $strict >/dev/null
  cmake --build --preset cuda -j "$jobs" --target gpu_tests -- --quiet
  ctest --preset cuda -R '^ptxas$' --verbose >build/cuda/ptxas.log || { cat build/cuda/ptxas.log; return 1; }
  closing+=("cuda: GPU tests compile; $(grep -oE '[0-9]+ kernels in [0-9]+ files, 0 problems' build/cuda/ptxas.log)")
}

stage_static() {
  python3 scripts/check_layers.py
  python3 scripts/check_links.py
  python3 bench/gpu_table.py --check
  scripts/sources.sh | xargs clang-format-14 --dry-run --Werror
  cmake --preset cpu $strict >/dev/null
  cmake --build --preset cpu -j "$jobs" --target all_verify_interface_header_sets -- --quiet
  scripts/tidy.sh "$jobs"
  closing+=("static: layers, tables of GPU figures, formatting, headers alone and clang-tidy passed")
}

stage_python() {
  mkdir -p build
  scripts/test_python.sh | tee build/pytest.log
  closing+=("python: $(grep -E ' passed' build/pytest.log | tail -1)")
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(static cpu cuda asan tsan python)
for stage in "${stages[@]}"; do
  printf '\n== %s\n' "$stage"
  "stage_$stage"
done

echo
printf '%s\n' "${closing[@]}"
