#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Python package into .venv, as a user would, and tests it there, on CPUs. Uses the PyTorch that .venv has,
# if any. `test_python.sh gpu` builds it for python3 (or $PYTHON) beside the C++ tests, with what that can import, and
# runs what needs a GPU; it says what is missing, and needs no network. Other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

test_on_cpus() {
  local python=.venv/bin/python
  [ -x "$python" ] || python3 -m venv .venv

  if ! "$python" -c 'import torch' 2>/dev/null; then
    # A build for CPUs is a tenth of the size, where an index has one.
    "$python" -m pip install --quiet 'torch==2.13.0+cpu' 2>/dev/null || "$python" -m pip install --quiet 'torch>=2.6'
  fi
  "$python" -m pip install --quiet --config-settings=cmake.define.MARBLE_CUDA=OFF '.[test]'

  local sources=(python tests/python examples scripts/python_reference.py scripts/plot_training.py bench/loader_wait.py)
  "$python" -m ruff check --quiet "${sources[@]}"
  "$python" -m ruff format --quiet --check "${sources[@]}"
  "$python" -m mypy --no-error-summary -p marble &
  local types=$!
  "$python" -m pytest tests/python -q "$@"
  wait "$types"
}

test_on_gpus() {
  local python missing
  python=$(command -v "${PYTHON:-python3}") || { echo "python: GPU tests skipped: no ${PYTHON:-python3}"; return; }
  missing=$("$python" - <<'END'
import importlib.util

needed = ("torch", "numpy", "nanobind", "pytest", "hypothesis", "rich")
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if "torch" not in missing:
    import torch

    if not torch.cuda.is_available():
        missing.append("a torch that sees a GPU")
print(", ".join(missing))
END
  )
  if [ -n "$missing" ]; then
    echo "python: GPU tests skipped: $python lacks $missing"
    return
  fi
  cmake --preset cuda -DMARBLE_PYTHON=ON -DPython_EXECUTABLE="$python" >/dev/null
  cmake --build --preset cuda -j "${JOBS:-$(nproc)}" --target marble_python -- --quiet
  local site=$PWD/build/cuda/site
  rm -rf "$site"
  mkdir -p "$site"
  cp -r python/marble "$site"
  cp build/cuda/python/_native*.so "$site/marble"

  export PYTHONPATH=$site
  if [ $# -gt 0 ]; then
    "$python" -m pytest tests/python -m gpu "$@"
    return
  fi
  # At once: the ranks of each transport, and what needs no ranks. Starting processes is most of it.
  local parts=(own group 'not own and not group') runs=() failed=0 i
  for i in "${!parts[@]}"; do
    "$python" -m pytest tests/python -m gpu -q -k "${parts[i]}" >"$site/$i.log" 2>&1 &
    runs+=($!)
  done
  for i in "${!parts[@]}"; do
    wait "${runs[i]}" || failed=1
    cat "$site/$i.log"
  done
  return "$failed"
}

if [ "${1:-}" = gpu ]; then
  shift
  test_on_gpus "$@"
else
  test_on_cpus "$@"
fi
