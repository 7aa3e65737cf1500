#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# Layers over two GPUs of this machine, after a build with -DMARBLE_CUDA=ON -DMARBLE_BENCH=ON (make gpu-bench): beside
# PyTorch's context parallelism (bench/two_gpus.py, whose flags it takes), then beside their own parts (marble bench).
# Rows go to bench/results. Where there is one GPU it does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

gpus=$(nvidia-smi -L | wc -l)
if [ "$gpus" -lt 2 ]; then
  echo "two_gpus: left out, as this machine has $gpus GPU"
  exit 0
fi
build="${BUILD:-build/cuda}"
start=(torchrun --nproc-per-node 2)
"${start[@]}" bench/two_gpus.py --lib "$build/bench/libmarble_gpu_bench.so" --out bench/results/two_gpus.jsonl "$@"

causal=$(mktemp --suffix .json)
trap 'rm -f "$causal"' EXIT
echo '{"marble_layout": 1, "samples": [[["causal", 65536]]]}' > "$causal"
parts() {
  "${start[@]}" --no-python "$build/tools/marble/marble" bench "$@" --dim 128 --backend cuda --transport nccl --json |
    python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)))'
}
{
  for heads in 32/4 32/32; do
    parts "$causal" --heads "$heads" --ring 2
    parts "$causal" --heads "$heads" --ulysses 2
  done
  for layout in qwen3vl-docs gemma3-docs bagel-mix molmo2-sft; do
    parts "$layout" --tokens 131072 --ring 2
  done
} > bench/results/two_gpus_parts.jsonl
