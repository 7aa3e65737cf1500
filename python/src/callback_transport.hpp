// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A transport whose messages a Python object moves, over any process group.

#include "marble/transport.hpp"

#include <cstdint>
#include <memory>
#include <nanobind/nanobind.h>
#include <string>

namespace marble::python {

/// `peers` is None on a mesh of one rank; else an object with
///   begin(sends, recvs, label) -> int   lists of (peer, address, bytes), none for this rank itself
///   wait(ticket) -> int                 returns when that exchange is complete: bytes received
///   gather(value) -> list[int]          every rank's 64-bit value, by rank
/// whose exceptions poison the transport. Called with the GIL; destroy it with the GIL held.
[[nodiscard]] std::unique_ptr<Transport> make_callback_transport(const std::string& name, std::int32_t rank,
                                                                 std::int32_t num_ranks, nanobind::object peers);

}  // namespace marble::python
