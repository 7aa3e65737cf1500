# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0

JOBS ?= $(shell nproc)
# Tests at once; they share one GPU.
GPU_JOBS ?= 8

# Containers run as root; Open MPI asks to be told twice that this is meant.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

# Compilations are cached across checkouts: paths count from the root.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.PHONY: help setup build demo test test-python gpu-test gpu-bench format

help:
	@echo "make demo       set up, build, show a layout, its balance, the ring tutorial and the proof (no GPU)"
	@echo "make test       set up, build, run all tests, sanitizers and source checks (no GPU)"
	@echo "make test-python  install the Python package into .venv and test it there"
	@echo "make build      set up and build everything: build/cpu/tools/marble/marble"
	@echo "make gpu-test   build with CUDA and run the tests that need a GPU, Python's too where python3 has PyTorch"
	@echo "make gpu-bench  build with CUDA and run the GPU benchmarks, those across GPUs where there are several;"
	@echo "                BENCH_FLAGS=--quick: fewer cases on one GPU"
	@echo "make format     format all C++ sources"

setup:
	@scripts/setup.sh test

build:
	@scripts/setup.sh build
	cmake --preset cpu
	cmake --build --preset cpu -j $(JOBS)

demo:
	@scripts/setup.sh build
	cmake --preset cpu
	cmake --build --preset cpu -j $(JOBS) --target marble_cli ring_tutorial
	scripts/demo.sh

test: setup
	JOBS=$(JOBS) scripts/test.sh

test-python: setup
	scripts/test_python.sh

gpu-test:
	@scripts/setup.sh build
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS) --target gpu_tests
	ctest --preset cuda -L gpu -j $(GPU_JOBS)
	JOBS=$(JOBS) scripts/test_python.sh gpu

gpu-bench:
	@python3 -c 'import torch; torch.cuda.get_device_name()' 2>/dev/null || \
		{ echo "gpu-bench: python3 needs a PyTorch that sees a GPU" >&2; exit 1; }
	@scripts/setup.sh build
	cmake --preset cuda -DMARBLE_BENCH=ON
	cmake --build --preset cuda -j $(JOBS) --target marble_gpu_bench gpu_plan_forms marble_cli
	bench/gpu.sh $(BENCH_FLAGS)
	bench/across_gpus.sh

format: setup
	scripts/sources.sh | xargs clang-format-14 -i
