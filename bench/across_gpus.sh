#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# Layers over the GPUs of this machine, after a build with -DMARBLE_CUDA=ON -DMARBLE_BENCH=ON (make gpu-bench). GPUS=N
# takes the first N. Each section writes its rows to bench/results/across_gpus_N_SECTION.jsonl; bench/gpu_table.py makes
# tables from them. Where there is one GPU it does nothing.
#
#   bench/across_gpus.sh [SECTION ...]    without any: cases alone parts, some six minutes on two H200
#
#   cases       the usual cases beside PyTorch's context parallelism
#   generators  every generator beside it, over every mesh and by every placement
#   alone       from one GPU to all, beside a busy link, over the transport that uses multiprocessors, and a soak
#               over each rung of the transport (put: MARBLE_NCCL_LIBRARY names an NCCL of 2.29.2 or newer)
#   parts       layers beside their own parts
#   trace       steps, works and exchanges of a layer, for Perfetto
#   errors      against dense attention, on every generator, over a ring by either strategy and over Ulysses
set -euo pipefail
cd "$(dirname "$0")/.."

gpus="${GPUS:-$(python3 -c 'import torch; print(torch.cuda.device_count())')}"
if [ "$gpus" -lt 2 ]; then
  echo "across_gpus: left out, as this machine has $gpus GPU"
  exit 0
fi
build="${BUILD:-build/cuda}"
rows=
causal=$(mktemp --suffix .json)
trap 'rm -f "$causal"' EXIT
echo '{"marble_layout": 1, "samples": [[["causal", 65536]]]}' > "$causal"

bench() {
  local ranks=$1 program=$2
  shift 2
  torchrun --nproc-per-node "$ranks" "bench/$program" --lib "$build/bench/libmarble_gpu_bench.so" --out "$rows" "$@"
}
# A command of the marble tool, over all GPUs. PORT: of torchrun, where several run at once.
launch() {
  torchrun --no-python --nproc-per-node "$gpus" --master-port "${PORT:-29500}" "$build/tools/marble/marble" "$@" \
    --backend cuda --transport nccl
}
# A case's name, then such a command; one row.
marble() {
  local case=$1
  shift
  launch "$@" --json |
    python3 -c 'import json, sys; print(json.dumps({"case": sys.argv[1], "command": sys.argv[2]} | json.load(sys.stdin)))' \
      "$case" "torchrun --no-python --nproc-per-node $gpus marble $*" >> "$rows"
}

cases() {
  bench "$gpus" across_gpus.py
}
generators() {
  bench "$gpus" across_gpus.py --generators 262144 --placements
  [ "$gpus" -lt 4 ] || bench "$gpus" across_gpus.py --generators 1048576 --placements
}
alone() {
  for ranks in 2 4 8; do
    [ "$ranks" -gt "$gpus" ] || bench "$ranks" across_gpus.py --only scaling
  done
  bench "$gpus" busy_link.py --rungs copy sendrecv
  MARBLE_TRANSPORT_RUNG=sendrecv bench "$gpus" across_gpus.py --only "causal 64k" documents noise --modes auto
  bench "$gpus" across_gpus.py --only soak
}
parts() {
  for heads in 32/4 32/32; do
    marble "causal 64k" bench "$causal" --heads "$heads" --dim 128 --ring "$gpus"
    marble "causal 64k" bench "$causal" --heads "$heads" --dim 128 --ulysses "$gpus"
  done
  for layout in qwen3vl-docs gemma3-docs bagel-mix molmo2-sft; do
    marble "$layout 128k" bench "$layout" --tokens 131072 --ring "$gpus"
  done
}
errors() {
  local layouts layout mesh forth back status=0 pids=()
  local meshes=("--ring $gpus --strategy ring" "--ring $gpus --strategy alltoall" "--ulysses $gpus")
  [ "$gpus" -lt 4 ] || meshes+=("--ring $((gpus / 2)) --ulysses 2")
  # Three a GPU at once. Rank 0 computes the reference, too, so every second run counts the GPUs from the other end; a
  # run takes two ports.
  forth=${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 $((gpus - 1)))}
  back=$(tr , '\n' <<< "$forth" | tac | paste -sd ,)
  layouts=$("$build/tools/marble/marble" layouts --json |
    python3 -c 'import json, sys; print(*(layout["name"] for layout in json.load(sys.stdin)["layouts"]))')
  for layout in $layouts; do
    for mesh in "${meshes[@]}"; do
      [ ${#pids[@]} -lt $((3 * gpus)) ] || wait -n || true  # the loop below tells
      # shellcheck disable=SC2086
      CUDA_VISIBLE_DEVICES=$([ $((${#pids[@]} % 2)) = 0 ] && echo "$forth" || echo "$back") \
        PORT=$((29500 + 2 * ${#pids[@]})) marble "$layout 32k" verify "$layout" --tokens 32768 $mesh &
      pids+=($!)
    done
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return "$status"
}
trace() {
  launch bench "$causal" --heads 32/32 --dim 128 --ring "$gpus" --trace "bench/results/across_gpus_${gpus}_trace.json"
}

[ $# -gt 0 ] || set -- cases alone parts
for section in "$@"; do
  rows="bench/results/across_gpus_${gpus}_$section.jsonl"
  rm -f "$rows"
  "$section"
done
python3 bench/gpu_table.py
