# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""
Exact, balanced attention over packed multimodal sequences, across any number of ranks.

layout = marble.Layout([[("causal", 210), ("full", 256), ("causal", 300)]])
model = marble.Model(heads=8, kv_heads=2, head_dim=64)
plan = marble.plan(layout, model=model, mesh=marble.Mesh(ring=4))
x = plan.shard(x)                        # this rank's rows
out = marble.attention(q, k, v, plan)    # [rows, heads, head_dim]
y = plan.unshard(out)                    # all tokens, in the given order
"""

from marble._native import BackendError, Error, InternalError, TransportError
from marble.attention import attention
from marble.backend import cuda_available
from marble.groups import forget_group
from marble.layout import GeneratedModel, Layout, generator, generators
from marble.loader import PlanningCollate
from marble.loss import token_mean
from marble.mesh import Mesh
from marble.model import Model, Window
from marble.plan import Piece, Plan, plan

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Error",
    "GeneratedModel",
    "InternalError",
    "Layout",
    "Mesh",
    "Model",
    "Piece",
    "Plan",
    "PlanningCollate",
    "TransportError",
    "Window",
    "attention",
    "cuda_available",
    "forget_group",
    "generator",
    "generators",
    "plan",
    "token_mean",
]
