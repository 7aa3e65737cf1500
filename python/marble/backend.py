# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What computes on a device, with memory of PyTorch's allocator."""

from __future__ import annotations

import torch

from marble import _native


def cuda_available() -> bool:
    """Whether this build of marble has the CUDA backend and a GPU is present."""
    return _native.cuda_available()


class LentMemory:
    """Lends memory of PyTorch's allocator for a GPU, on the stream that is current when it is taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lent: dict[int, torch.Tensor] = {}

    def allocate(self, size: int) -> int:
        """The address of ``size`` bytes; PyTorch aligns them to 512."""
        block = torch.empty(max(size, 1), dtype=torch.uint8, device=self._device)
        self._lent[block.data_ptr()] = block
        return block.data_ptr()

    def free(self, address: int) -> None:
        """Takes back what ``allocate`` gave."""
        del self._lent[address]


def make_backend(device: torch.device, stream: int) -> _native.Backend:
    """The backend of a device, on a stream of it; ValueError where there is none."""
    if device.type == "cpu":
        return _native.cpu_backend(torch.get_num_threads())
    if device.type == "cuda" and cuda_available():
        return _native.cuda_backend(device.index, stream, LentMemory(device))
    known = "cpu or cuda" if cuda_available() else "cpu; this build of marble has no other backend"
    raise ValueError(f"device: {device} should be {known}")
