// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/bound_plan.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "verify/dense_kernels.hpp"
#include "verify/dense_reference.hpp"

#include "marble/error.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace marble {
namespace {

using cuda::check_cuda;

template <typename T>
std::int64_t bytes_of(const std::vector<T>& values) {
  return std::ssize(values) * static_cast<std::int64_t>(sizeof(T));
}

template <typename T>
cuda::DeviceBuffer upload(const std::vector<T>& values) {
  cuda::DeviceBuffer buffer(bytes_of(values));
  check_cuda(
      cudaMemcpy(buffer.data(), values.data(), static_cast<std::size_t>(bytes_of(values)), cudaMemcpyHostToDevice),
      "copying the reference's inputs to the GPU");
  return buffer;
}

/// Device memory for a result, and the vector that it comes back in.
template <typename T>
class Returned {
 public:
  Returned(std::vector<T>& host, std::int64_t elements)
      : host_(host), device_(elements * static_cast<std::int64_t>(sizeof(T))) {
    host_.resize(static_cast<std::size_t>(elements));
  }
  [[nodiscard]] T* data() const { return device_.template as<T>(); }
  void fetch() {
    check_cuda(
        cudaMemcpy(host_.data(), device_.data(), static_cast<std::size_t>(bytes_of(host_)), cudaMemcpyDeviceToHost),
        "copying the reference's results from the GPU");
  }

 private:
  std::vector<T>& host_;
  cuda::DeviceBuffer device_;
};

std::vector<TokenTracks> tokens_of(const Layout& layout) {
  const Tracks tracks = to_tracks(layout);
  std::vector<TokenTracks> tokens;
  tokens.reserve(tracks.position.size());
  for (std::size_t t = 0; t < tracks.position.size(); ++t)
    tokens.push_back({tracks.sample[t], tracks.segment[t], tracks.noise[t], tracks.position[t]});
  return tokens;
}

}  // namespace

DenseResult dense_reference_cuda(const Layout& layout, const MaskRule& rule, const HeadShape& shape,
                                 const DenseInputs& inputs, const DenseOptions& options, int device) {
  check_cuda(cudaSetDevice(device), "selecting the reference's GPU");
  const std::int64_t rows = layout.num_tokens() * shape.heads;
  const std::int64_t query_elements = rows * shape.head_dim;
  const std::int64_t key_elements = layout.num_tokens() * shape.kv_heads * shape.head_dim;
  const auto report = [&](double fraction) {
    check_cuda(cudaDeviceSynchronize(), "computing the reference");
    if (options.progress) options.progress(fraction);
  };

  const cuda::DeviceBuffer tracks = upload(tokens_of(layout));
  const cuda::DeviceBuffer q = upload(inputs.q), k = upload(inputs.k), v = upload(inputs.v);
  DenseResult result;
  Returned out(result.out, query_elements);
  Returned lse(result.lse, rows);
  dense::DeviceProblem problem{.tracks = tracks.as<TokenTracks>(),
                               .rule = rule,
                               .tokens = layout.num_tokens(),
                               .heads = shape.heads,
                               .kv_heads = shape.kv_heads,
                               .dim = shape.head_dim,
                               .scale = options.attention.softmax_scale,
                               .softcap = options.attention.softcap,
                               .dtype = options.dtype,
                               .q = q.as<float>(),
                               .k = k.as<float>(),
                               .v = v.as<float>(),
                               .out = out.data(),
                               .lse = lse.data()};
  dense::launch_attend(problem);
  report(options.backward ? 0.2 : 1.0);
  out.fetch();
  lse.fetch();
  if (!options.backward) return result;

  const cuda::DeviceBuffer dout = upload(inputs.dout);
  const cuda::DeviceBuffer delta(rows * std::int64_t{sizeof(double)}), change(rows * std::int64_t{sizeof(double)});
  Returned dq(result.dq, query_elements), dk(result.dk, key_elements), dv(result.dv, key_elements);
  Returned dq_stored(result.dq_stored, query_elements), dk_stored(result.dk_stored, key_elements);
  problem.dout = dout.as<float>();
  problem.delta = delta.as<double>();
  problem.delta_change = change.as<double>();
  problem.dq = dq.data();
  problem.dk = dk.data();
  problem.dv = dv.data();
  problem.dq_stored = dq_stored.data();
  problem.dk_stored = dk_stored.data();
  dense::launch_delta(problem);
  dense::launch_query_gradient(problem);
  report(0.6);
  dense::launch_key_gradient(problem);
  report(1.0);
  dq.fetch();
  dk.fetch();
  dv.fetch();
  dq_stored.fetch();
  dk_stored.fetch();
  return result;
}

}  // namespace marble
