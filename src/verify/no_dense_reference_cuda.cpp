// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/dense_reference.hpp"

#include "marble/error.hpp"

namespace marble {

DenseResult dense_reference_cuda(const Layout&, const MaskRule&, const HeadShape&, const DenseInputs&,
                                 const DenseOptions&, int) {
  throw InvalidArgument("this library was built without CUDA (MARBLE_CUDA), so its reference runs on the CPU only");
}

}  // namespace marble
