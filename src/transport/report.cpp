// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/report.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

namespace marble {
namespace {

std::string with_commas(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string describe_bytes(std::int64_t bytes) {
  return with_commas(bytes) + (bytes == 1 ? " byte" : " bytes");
}

std::string describe_ranks(std::span<const std::size_t> ranks) {
  constexpr std::size_t kMostNamed = 8;
  const std::size_t named = std::min(kMostNamed, ranks.size());
  std::string text = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks.first(named), ", "));
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

}  // namespace

void check_messages(std::span<const Message> messages, std::int32_t num_ranks, std::string_view label) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    require(message.peer >= 0 && message.peer < num_ranks, "message {} of '{}' names rank {} of {}", i, label,
            message.peer, num_ranks);
    require(message.bytes >= 0, "message {} of '{}' has {} bytes", i, label, message.bytes);
    require(message.bytes == 0 || message.data != nullptr, "message {} of '{}' has {} bytes and no memory", i, label,
            message.bytes);
  }
}

std::string describe_messages(std::span<const std::int64_t> sizes) {
  const auto bytes = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  return fmt::format("{} of {}", sizes.size() == 1 ? "a message" : fmt::format("{} messages", sizes.size()),
                     describe_bytes(bytes));
}

std::string describe_timeout(std::int32_t rank, std::chrono::milliseconds limit, std::span<const std::int64_t> sizes,
                             std::string_view direction, std::int32_t peer, std::string_view label) {
  return fmt::format("rank {} waited {:.1f} s for {} {} rank {} in '{}'", rank,
                     std::chrono::duration<double>(limit).count(), describe_messages(sizes), direction, peer, label);
}

void check_sizes(std::int32_t rank, std::int32_t peer, std::string_view label, std::span<const std::int64_t> expected,
                 std::span<const std::int64_t> sent) {
  if (expected.size() != sent.size())
    throw TransportError(fmt::format("rank {} expected {} from rank {} in '{}', which sent {}", rank,
                                     describe_messages(expected), peer, label, describe_messages(sent)));
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i] != sent[i])
      throw TransportError(fmt::format("rank {} expected {} in message {} of {} from rank {} in '{}', which sent {}",
                                       rank, describe_bytes(expected[i]), i, expected.size(), peer, label,
                                       with_commas(sent[i])));
}

void check_agreement(std::span<const std::uint64_t> values, std::string_view what) {
  std::map<std::uint64_t, std::vector<std::size_t>> ranks_of;
  for (std::size_t rank = 0; rank < values.size(); ++rank) ranks_of[values[rank]].push_back(rank);
  if (ranks_of.size() <= 1) return;
  std::vector<std::string> sides;
  for (const auto& [value, ranks] : ranks_of) sides.push_back(fmt::format("{:#x} on {}", value, describe_ranks(ranks)));
  throw InvalidArgument(fmt::format("{} differs between ranks: {}", what, fmt::join(sides, "; ")));
}

}  // namespace marble
