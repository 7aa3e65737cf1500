// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The words of transport errors, so that every transport says the same thing the same way.

#include "marble/transport.hpp"

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace marble {

/// Throws InvalidArgument unless every message names a rank, a size >= 0 and memory.
void check_messages(std::span<const Message> messages, std::int32_t num_ranks, std::string_view label);

/// "3 messages of 1,024 bytes"
[[nodiscard]] std::string describe_messages(std::span<const std::int64_t> sizes);

/// "rank 2 waited 60.0 s for 3 messages of 1,024 bytes from rank 1 in 'forward step 2 fetch'"; `direction` is from or
/// to.
[[nodiscard]] std::string describe_timeout(std::int32_t rank, std::chrono::milliseconds limit,
                                           std::span<const std::int64_t> sizes, std::string_view direction,
                                           std::int32_t peer, std::string_view label);

/// Throws TransportError, naming the message, unless `peer` sent what `rank` expected.
void check_sizes(std::int32_t rank, std::int32_t peer, std::string_view label, std::span<const std::int64_t> expected,
                 std::span<const std::int64_t> sent);

/// Throws InvalidArgument unless all values (one a rank) are equal.
void check_agreement(std::span<const std::uint64_t> values, std::string_view what);

}  // namespace marble
