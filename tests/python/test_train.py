# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The training example: equal losses and gradients on every mesh."""

import pytest
import torch

STEPS = 4


@pytest.fixture(scope="module")
def one_process(pool):
    (result,) = pool.run(1, "train_example", steps=STEPS)
    return result


@pytest.mark.parametrize(
    ("ranks", "ulysses", "fsdp"), [(4, 1, False), (4, 2, False), (4, 1, True), (4, 2, True), (3, 1, True)]
)
def test_every_mesh_trains_alike(pool, one_process, ranks, ulysses, fsdp):
    if fsdp and not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this PyTorch has no FSDP2 on CPUs")
    for result in pool.run(ranks, "train_example", steps=STEPS, ulysses=ulysses, fsdp=fsdp):
        assert result["losses"] == pytest.approx(one_process["losses"], rel=1e-5)
        assert result["gradient_norms"] == pytest.approx(one_process["gradient_norms"], rel=1e-4)
    assert one_process["losses"][-1] < one_process["losses"][0]
