# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of integers from whatever callers hold."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_integers(name: str, values: Any, dtype: type[np.integer], dims: int = 1) -> np.ndarray:
    """
    A dense host array of ``dims`` dimensions.

    Raises TypeError unless ``values`` (a tensor, an array or nested lists) holds integers, ValueError when its shape
    has another number of dimensions or a value does not fit ``dtype``.
    """
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.size == 0:
        array = array.astype(dtype)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: {array.dtype} should be an integer type")
    if array.ndim != dims:
        raise ValueError(f"{name}: shape {list(array.shape)} should have {dims} dimension(s)")
    limits = np.iinfo(dtype)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise ValueError(f"{name}: values {array.min()}..{array.max()} do not fit {np.dtype(dtype)}")
    return np.ascontiguousarray(array, dtype=dtype)
