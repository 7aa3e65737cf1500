#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# The GPU benchmarks, after a build with -DMARBLE_CUDA=ON -DMARBLE_BENCH=ON (make gpu-bench): speed and errors beside
# their peers, and what the form of a plan costs. Rows go to bench/results, with machine and commit; the tables in
# README.md and docs/kernels.md are made from them.
set -euo pipefail
cd "$(dirname "$0")/.."

build="${BUILD:-build/cuda}/bench"
lib="$build/libmarble_gpu_bench.so"
python3 bench/gpu_attention.py --lib "$lib" --out bench/results/gpu_attention.jsonl "$@"
python3 bench/gpu_errors.py --lib "$lib" --out bench/results/gpu_errors.jsonl "$@"
machine=$(nvidia-smi --query-gpu=name --format=csv,noheader --id=0)
"$build/gpu_plan_forms" "$machine" | tee bench/results/gpu_plan_forms.jsonl
python3 bench/gpu_table.py
