// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"
#include "marble/transport.hpp"

namespace marble {

bool nccl_available() {
  return false;
}

std::unique_ptr<Transport> make_nccl_transport(const NcclOptions&) {
  throw InvalidArgument("transport nccl is not in this build; configure with -DMARBLE_CUDA=ON, or use transport mpi");
}

}  // namespace marble
