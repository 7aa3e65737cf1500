// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/dense_reference_cases.hpp"

namespace marble {
namespace {

DenseResult on_first_gpu(const Layout& layout, const MaskRule& rule, const HeadShape& shape, const DenseInputs& inputs,
                         const DenseOptions& options) {
  return dense_reference_cuda(layout, rule, shape, inputs, options, 0);
}

INSTANTIATE_TEST_SUITE_P(Cuda, DenseReference, ::testing::Values(Reference{"cuda", on_first_gpu}), reference_name);

}  // namespace
}  // namespace marble
