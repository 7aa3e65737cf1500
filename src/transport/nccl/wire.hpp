// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What ranks say to each other beside the data: small values, packed in the order of writing. Ranks of one job run the
// same build on like machines, which the rendezvous checks, so values travel as they lie in memory.

#include "marble/error.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace marble::nccl {

class Writer {
 public:
  template <typename T>
  Writer& value(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&x), sizeof(x));
    return *this;
  }
  Writer& text(std::string_view x) {
    value(static_cast<std::int64_t>(x.size()));
    bytes_.append(x);
    return *this;
  }
  Writer& values(const std::vector<std::int64_t>& list) {
    value(static_cast<std::int64_t>(list.size()));
    bytes_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(std::int64_t));
    return *this;
  }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T x;
    std::memcpy(&x, part(sizeof(T)).data(), sizeof(T));
    return x;
  }
  std::string text() { return std::string(part(static_cast<std::size_t>(value<std::int64_t>()))); }
  std::vector<std::int64_t> values() {
    const auto count = static_cast<std::size_t>(value<std::int64_t>());
    if (count > bytes_.size()) throw TransportError("a message between ranks is cut short");
    std::vector<std::int64_t> list(count);
    const std::string_view source = part(count * sizeof(std::int64_t));
    if (count > 0) std::memcpy(list.data(), source.data(), source.size());
    return list;
  }

 private:
  std::string_view part(std::size_t size) {
    if (size > bytes_.size()) throw TransportError("a message between ranks is cut short");
    const std::string_view result = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return result;
  }

  std::string_view bytes_;
};

}  // namespace marble::nccl
