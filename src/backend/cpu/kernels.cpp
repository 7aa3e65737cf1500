// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/tile.hpp"

#include <cstring>

namespace marble::cpu::MARBLE_CPU_LEVEL {
namespace {

/// Calls fn(from_bits, to_bits), the conversions of each dtype through fp32, as one loop per pair of dtypes.
template <typename Load>
void convert_from(const Load& load, void* target, DType target_type, std::int64_t count) {
  auto* wide = static_cast<float*>(target);
  auto* narrow = static_cast<std::uint16_t*>(target);
  switch (target_type) {
    case DType::fp32:
      for (std::int64_t i = 0; i < count; ++i) wide[i] = load(i);
      break;
    case DType::bf16:
      for (std::int64_t i = 0; i < count; ++i) narrow[i] = fp32_to_bf16(load(i));
      break;
    case DType::fp16:
      for (std::int64_t i = 0; i < count; ++i) narrow[i] = fp32_to_fp16(load(i));
      break;
  }
}

template <typename Load>
float dot_of(const Load& load, std::int64_t count) {
  // Sixteen sums side by side: vectors without a promise that addition is associative.
  float sums[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (std::int64_t lane = 0; lane < 16; ++lane) sums[lane] += load(i + lane);
  for (; i < count; ++i) sums[i % 16] += load(i);
  for (int width = 8; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  return sums[0];
}

float dot(const void* a, const void* b, DType dtype, std::int64_t count) {
  const auto* wide_a = static_cast<const float*>(a);
  const auto* wide_b = static_cast<const float*>(b);
  const auto* narrow_a = static_cast<const std::uint16_t*>(a);
  const auto* narrow_b = static_cast<const std::uint16_t*>(b);
  switch (dtype) {
    case DType::fp32:
      break;
    case DType::bf16:
      return dot_of([=](std::int64_t i) { return bf16_to_fp32(narrow_a[i]) * bf16_to_fp32(narrow_b[i]); }, count);
    case DType::fp16:
      return dot_of([=](std::int64_t i) { return fp16_to_fp32(narrow_a[i]) * fp16_to_fp32(narrow_b[i]); }, count);
  }
  return dot_of([=](std::int64_t i) { return wide_a[i] * wide_b[i]; }, count);
}

}  // namespace

void convert(const void* source, DType source_type, void* target, DType target_type, std::int64_t count) {
  if (source_type == target_type) {
    std::memcpy(target, source, static_cast<std::size_t>(count * size_of(source_type)));
    return;
  }
  const auto* wide = static_cast<const float*>(source);
  const auto* narrow = static_cast<const std::uint16_t*>(source);
  switch (source_type) {
    case DType::fp32:
      return convert_from([=](std::int64_t i) { return wide[i]; }, target, target_type, count);
    case DType::bf16:
      return convert_from([=](std::int64_t i) { return bf16_to_fp32(narrow[i]); }, target, target_type, count);
    case DType::fp16:
      return convert_from([=](std::int64_t i) { return fp16_to_fp32(narrow[i]); }, target, target_type, count);
  }
}

const Kernels& kernels();

const Kernels& kernels() {
  static constexpr Kernels table{MARBLE_CPU_LEVEL_NAME, forward, backward, convert, dot};
  return table;
}

}  // namespace marble::cpu::MARBLE_CPU_LEVEL
