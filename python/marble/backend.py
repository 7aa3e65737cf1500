# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What computes on a device, with memory of PyTorch's allocator."""

from __future__ import annotations

import torch

from marble import _native

ALIGNMENT = 256  # of workspace


def cuda_available() -> bool:
    """Whether this build of marble has the CUDA backend and a GPU is present."""
    return _native.cuda_available()


class Workspace:
    """Lends memory of PyTorch's allocator, on the stream that is current when it is taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lent: dict[int, torch.Tensor] = {}

    def allocate(self, size: int) -> int:
        """The address of ``size`` bytes, aligned to ALIGNMENT."""
        block = torch.empty(max(size, 1) + ALIGNMENT, dtype=torch.uint8, device=self._device)
        address = -(-block.data_ptr() // ALIGNMENT) * ALIGNMENT
        self._lent[address] = block
        return address

    def free(self, address: int) -> None:
        """Takes back what ``allocate`` gave."""
        del self._lent[address]

    def lent_bytes(self) -> int:
        """What is lent at present."""
        return sum(block.numel() for block in self._lent.values())


def make_backend(device: torch.device, stream: int, workspace: Workspace) -> _native.Backend:
    """The backend of a device, on a stream of it; ValueError where there is none."""
    if device.type == "cpu":
        return _native.cpu_backend(torch.get_num_threads(), workspace)
    if device.type == "cuda" and cuda_available():
        return _native.cuda_backend(device.index, stream, workspace)
    known = "cpu or cuda" if cuda_available() else "cpu; this build of marble has no other backend"
    raise ValueError(f"device: {device} should be {known}")
