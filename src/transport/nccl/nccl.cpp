// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/cuda_device.hpp"
#include "transport/nccl/nccl_library.hpp"
#include "transport/nccl/stream_transport.hpp"

#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <utility>

namespace marble {

bool nccl_available() {
  return true;
}

std::unique_ptr<Transport> make_nccl_transport(const NcclOptions& options) {
  const NcclOptions resolved = resolve_nccl_options(options);
  auto device = std::make_unique<nccl::CudaDevice>(resolved.device, static_cast<cudaStream_t>(resolved.stream));
  nccl::Fabric fabric;
  fabric.no_waits = device->why_no_waits();
  try {
    fabric.library = nccl::find_nccl(resolved.nccl_library, *device);
  } catch (const BackendError& error) {
    fabric.no_library = error.what();
  }
  fabric.device = std::move(device);
  return std::make_unique<nccl::StreamTransport>(resolved, std::move(fabric));
}

}  // namespace marble
