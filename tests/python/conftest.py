# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a pool of gloo ranks that lives as long as the test session, and hypothesis without time limits."""

import os

import marble
import pytest
import torch
from hypothesis import settings
from pool import RankPool

settings.register_profile(
    "marble",
    deadline=None,
    max_examples=int(os.environ.get("MARBLE_EXAMPLES", "25")),
    derandomize="CI" in os.environ,
)
settings.load_profile("marble")
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)  # which fills fresh memory with NaN
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which cuBLAS then asks for


@pytest.fixture(scope="session")
def pool():
    """Runs a function of rank_checks on the ranks of a gloo world of 1 to 4."""
    with RankPool(4) as ranks:
        yield ranks


@pytest.fixture(scope="session", params=[("nccl", "own"), ("cpu:gloo,cuda:nccl", "group")], ids=["own", "group"])
def gpu_pool(request):
    """The same with a GPU for each rank, one or two."""
    with RankPool(min(2, torch.cuda.device_count()), *request.param) as ranks:
        yield ranks


def pytest_collection_modifyitems(items):
    """Skips what needs a GPU where there is none."""
    if not marble.cuda_available():
        reason = "needs a GPU and a build of marble with CUDA"
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
