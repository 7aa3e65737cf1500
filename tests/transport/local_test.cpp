// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/transport_conformance.hpp"

namespace marble {
namespace {

RanksUnderTest local_ranks(std::int32_t num_ranks) {
  return {"Ranks" + std::to_string(num_ranks), num_ranks,
          [num_ranks](const TransportOptions& options, const std::function<void(Transport&)>& fn) {
            run_local_ranks(num_ranks, options, fn);
          }};
}

INSTANTIATE_TEST_SUITE_P(Local, TransportConformance,
                         testing::Values(local_ranks(1), local_ranks(2), local_ranks(3), local_ranks(5),
                                         local_ranks(8)),
                         ranks_name);

}  // namespace
}  // namespace marble
