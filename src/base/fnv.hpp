// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// 64-bit FNV-1a, the digest of layouts and plans: stable across platforms and versions.

#include <cstddef>
#include <cstdint>
#include <span>

namespace marble {

inline constexpr std::uint64_t kFnvOffset = 0xcbf29ce484222325ULL;

[[nodiscard]] constexpr std::uint64_t fnv1a(std::uint64_t hash, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) {
    hash ^= (value >> (8 * byte)) & 0xff;
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

[[nodiscard]] inline std::uint64_t fnv1a(std::uint64_t hash, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    hash ^= static_cast<std::uint64_t>(byte);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace marble
