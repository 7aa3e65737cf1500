#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# The GPU benchmarks, after a build with -DMARBLE_CUDA=ON -DMARBLE_BENCH=ON (make gpu-bench). Rows go to bench/results.
set -euo pipefail
cd "$(dirname "$0")/.."

python3 bench/gpu_attention.py --lib "${BUILD:-build/cuda}/bench/libmarble_gpu_bench.so" \
  --out bench/results/gpu_attention.jsonl "$@"
