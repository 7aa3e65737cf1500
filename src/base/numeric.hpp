// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// bf16 and fp16 as 16-bit patterns, to and from fp32, rounding to nearest even. Branch-free, so that a loop over them
// vectorises. Always inlined: the CPU kernels are compiled for newer processors than the rest of the library, and an
// out-of-line copy could end up in either.

#include "marble/tensor.hpp"

#include <bit>
#include <cstdint>

namespace marble {

[[gnu::always_inline]] constexpr float bf16_to_fp32(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

[[gnu::always_inline]] constexpr std::uint16_t fp32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
}

[[gnu::always_inline]] constexpr float fp16_to_fp32(std::uint16_t bits) {
  constexpr std::uint32_t kExponent = 0x7c00U << 13;
  constexpr std::uint32_t kRebias = (127U - 15U) << 23;
  const std::uint32_t shifted = (std::uint32_t{bits} & 0x7fffU) << 13;
  const std::uint32_t normal = shifted + kRebias;
  // A subnormal: give it the smallest normal exponent, and let a subtraction take the implicit bit away again.
  const float subnormal =
      std::bit_cast<float>(normal + (1U << 23)) - std::bit_cast<float>(std::uint32_t{(127U - 14U) << 23});
  const std::uint32_t finite = (shifted & kExponent) == 0 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  const std::uint32_t magnitude = (shifted & kExponent) == kExponent ? normal + kRebias : finite;
  return std::bit_cast<float>(magnitude | ((std::uint32_t{bits} & 0x8000U) << 16));
}

[[gnu::always_inline]] constexpr std::uint16_t fp32_to_fp16(float value) {
  // Adding 0.5 aligns a subnormal result's last bit with the last bit of the sum, which rounds it.
  constexpr std::uint32_t kHalf = 126U << 23;
  constexpr std::uint32_t kRebias = (127U - 15U) << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const float aligned = std::bit_cast<float>(magnitude < (113U << 23) ? magnitude : 0U) + std::bit_cast<float>(kHalf);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(aligned) - kHalf;
  const std::uint32_t normal = (magnitude - kRebias + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const std::uint32_t finite = magnitude < (113U << 23) ? subnormal : normal;
  const std::uint32_t not_finite = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const std::uint32_t result = magnitude >= (143U << 23) ? not_finite : finite;
  return static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000U));
}

/// Half the gap between 1 and the next value: the largest relative error of rounding once.
[[nodiscard]] constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::fp16:
      return 0x1p-11;
  }
  return 0.0;
}

/// Element `index` of an array of `dtype`, as fp32, and back (rounding once).
[[nodiscard]] inline float load_element(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::fp32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::bf16 ? bf16_to_fp32(bits) : fp16_to_fp32(bits);
}
inline void store_element(void* data, DType dtype, std::int64_t index, float value) {
  if (dtype == DType::fp32)
    static_cast<float*>(data)[index] = value;
  else
    static_cast<std::uint16_t*>(data)[index] = dtype == DType::bf16 ? fp32_to_bf16(value) : fp32_to_fp16(value);
}

}  // namespace marble
