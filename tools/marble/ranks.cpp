// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include "marble/cuda.hpp"
#include "marble/error.hpp"

namespace marble::cli {

void RankFlags::add_to(CLI::App& app) {
  app.add_option("--backend", backend, "cpu, or cuda (ranks of one process share a GPU)")->capture_default_str();
  app.add_option("--transport", transport,
                 "local (ranks as threads), mpi (start it with mpirun) or nccl (between GPUs; mpirun or torchrun)")
      ->capture_default_str();
  app.add_option("--threads", threads, "Threads of this process (0: all cores)")->capture_default_str();
}

void RankFlags::check() const {
  require(backend == "cpu" || backend == "cuda", "unknown backend '{}'; use cpu or cuda", backend);
  require(transport == "local" || transport == "mpi" || transport == "nccl",
          "unknown transport '{}'; use local, mpi or nccl", transport);
  require(transport != "nccl" || backend == "cuda", "transport nccl moves GPUs' memory; use --backend cuda");
  require(backend != "cuda" || cuda_available(), "backend cuda needs a build with CUDA and a GPU; use cpu");
}

Ranks make_ranks(const RankFlags& flags, const Mesh& mesh, std::chrono::milliseconds time_limit) {
  Ranks ranks;
  if (flags.transport == "nccl") {
    const NcclOptions options = resolve_nccl_options({.time_limit = time_limit});
    ranks.transport = make_nccl_transport(options);
    ranks.device = options.device;
    // Both work on the device's default stream.
    ranks.backend = [device = options.device](int) { return make_cuda_backend(device, nullptr); };
  } else {
    if (flags.transport == "mpi") ranks.transport = make_mpi_transport({.time_limit = time_limit});
    const int rank = ranks.transport == nullptr ? 0 : ranks.transport->rank();
    if (flags.backend == "cuda") ranks.device = rank % cuda_device_count();
    ranks.backend = [name = flags.backend, device = ranks.device.value_or(0)](int num_threads) {
      return make_backend(name, device, num_threads);
    };
  }
  if (ranks.transport != nullptr)
    require(ranks.transport->num_ranks() == mesh.num_ranks(),
            "{} processes were started but the mesh has {} ranks; use --ring", ranks.transport->num_ranks(),
            mesh.num_ranks());
  return ranks;
}

}  // namespace marble::cli
