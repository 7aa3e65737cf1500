// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/transport.hpp"

#include <array>

namespace marble {

std::string_view to_string(Rung rung) {
  constexpr std::array<std::string_view, 4> kNames = {"auto", "copy", "put", "sendrecv"};
  return kNames[static_cast<std::size_t>(rung)];
}

}  // namespace marble
