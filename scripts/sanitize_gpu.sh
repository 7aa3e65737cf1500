#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# sanitize_gpu.sh TOOL PROGRAM ARGS...: a test program under a tool of compute-sanitizer. Exits 77, with the reason, where
# the tool or a GPU is absent.
set -euo pipefail

tool=$1 program=$2
shift 2
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ ! -x "$sanitizer" ]; then
  echo "skipped: no compute-sanitizer on this machine"
  exit 77
fi
if "$program" --gtest_filter=-* >/dev/null; then status=0; else status=$?; fi
if [ "$status" = 77 ]; then
  echo "skipped: no GPU on this machine"
  exit 77
fi
exec "$sanitizer" --tool "$tool" --error-exitcode 1 --print-limit 20 "$program" "$@"
