# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of the pool run. Every function gets its process group first."""

from .attention import (
    attention_is_dense,
    bytes_received_backward,
    compiled_layers_are_eager,
    gloo_moves_messages_of_gpus,
    staged_messages_are_exact,
    streams_are_current_ones,
    two_groups_run_at_once,
)
from .failures import (
    a_failed_transport_stays_failed,
    a_lone_refusal_ends_the_others_waits,
    a_silent_peer_is_named,
    different_plans_are_refused,
    refusals_come_before_communication,
    texts_are_gathered_through_the_store,
)
from .meshes import mesh_of, meshes_agree
from .models import (
    gemma3_example_is_dense,
    image_tokens_held,
    train_example,
    transformers_model_is_dense,
    wrapped_gradients_are_those_of_one_process,
)
from .shards import features_reach_their_rows, mean_is_global, shard_and_unshard_return

__all__ = [
    "a_failed_transport_stays_failed",
    "a_lone_refusal_ends_the_others_waits",
    "a_silent_peer_is_named",
    "attention_is_dense",
    "bytes_received_backward",
    "compiled_layers_are_eager",
    "different_plans_are_refused",
    "features_reach_their_rows",
    "gemma3_example_is_dense",
    "gloo_moves_messages_of_gpus",
    "image_tokens_held",
    "mean_is_global",
    "mesh_of",
    "meshes_agree",
    "refusals_come_before_communication",
    "shard_and_unshard_return",
    "staged_messages_are_exact",
    "streams_are_current_ones",
    "texts_are_gathered_through_the_store",
    "train_example",
    "transformers_model_is_dense",
    "two_groups_run_at_once",
    "wrapped_gradients_are_those_of_one_process",
]
