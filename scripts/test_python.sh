#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Python package into .venv, as a user would, and tests it there. Uses the PyTorch that .venv has, if any.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
[ -x "$python" ] || python3 -m venv .venv

if ! "$python" -c 'import torch' 2>/dev/null; then
  # A build for CPUs is a tenth of the size, where an index has one.
  "$python" -m pip install --quiet 'torch==2.13.0+cpu' 2>/dev/null || "$python" -m pip install --quiet 'torch>=2.6'
fi
"$python" -m pip install --quiet --config-settings=cmake.define.MARBLE_CUDA=OFF '.[test]'

sources=(python tests/python examples scripts/python_reference.py scripts/plot_training.py bench/loader_wait.py)
"$python" -m ruff check --quiet "${sources[@]}"
"$python" -m ruff format --quiet --check "${sources[@]}"
"$python" -m mypy --no-error-summary -p marble &
types=$!
"$python" -m pytest tests/python -q "$@"
wait "$types"
