// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/backend_cuda.hpp"

#include "backend/cuda/attention_forward.hpp"
#include "backend/cuda/backward_work.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/tensor_map.hpp"
#include "backend/cuda/tensor_ops.hpp"
#include "backend/cuda/tile_dims.hpp"
#include "backend/cuda/timeline_cuda.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace marble::cuda {
namespace {

const CudaBoundPlan& bound_here(const BoundPlan& plan) {
  const auto* bound = dynamic_cast<const CudaBoundPlan*>(&plan);
  require(bound != nullptr, "plan was bound by another backend, not by cuda");
  return *bound;
}

/// True when rows can be read 16 bytes at a time, and by the copy engine.
bool is_aligned(const TensorView& view) {
  const auto on_16_bytes = [&](std::int64_t elements) { return elements * size_of(view.dtype) % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && on_16_bytes(view.row_stride) &&
         on_16_bytes(view.head_stride) && on_16_bytes(view.dim);
}

/// True when some query block meets its keys in more than one work.
bool carries_state(const RankPlan& plan) {
  constexpr std::int32_t kWhole = Item::kFirst | Item::kLast;
  for (const Work& work : plan.works())
    for (std::int64_t i = work.forward_items.begin; i < work.forward_items.end; ++i)
      if ((plan.items()[static_cast<std::size_t>(i)].flags & kWhole) != kWhole) return true;
  return false;
}

std::int64_t carried_slots(const RankPlan& plan) {
  return carries_state(plan) ? plan.header().local_heads * num_blocks(plan.header().query_rows) : 0;
}

void set_scales(ForwardParams& params, const AttentionOptions& options) {
  constexpr double kLog2E = 1.4426950408889634;
  if (options.softcap > 0.0) {
    params.score_map = ScoreMap::softcap;
    params.score_scale = static_cast<float>(options.softmax_scale / options.softcap);
    params.exponent_scale = static_cast<float>(options.softcap * kLog2E);
  } else if (options.softmax_scale > 0.0) {
    params.exponent_scale = static_cast<float>(options.softmax_scale * kLog2E);
  } else {
    params.score_map = ScoreMap::multiply;
    params.score_scale = static_cast<float>(options.softmax_scale);
    params.exponent_scale = static_cast<float>(kLog2E);
  }
}

ForwardParams make_params(const CudaBoundPlan& bound, std::int32_t index, const ForwardTensors& tensors,
                          const AttentionOptions& options) {
  const RankPlanHeader& header = bound.plan().header();
  const BoundWork& work = bound.work(index);
  const SectionRange& items = bound.plan().works()[static_cast<std::size_t>(index)].forward_items;
  ForwardParams params;
  params.items = bound.items() + items.begin;
  params.runs = bound.runs();
  params.head_map = bound.head_map();
  params.visibility = work.visibility;
  params.num_items = static_cast<std::int32_t>(items.size());
  params.num_heads = header.local_heads;
  params.num_blocks = static_cast<std::int32_t>(num_blocks(header.query_rows));
  params.num_splits = work.num_splits;
  params.head_dim = header.head_dim;
  params.valid_query_rows = static_cast<std::int32_t>(header.valid_query_rows);
  params.valid_key_rows = static_cast<std::int32_t>(work.valid_key_rows);
  params.is_aligned =
      is_aligned(tensors.q) && is_aligned(tensors.k) && is_aligned(tensors.v) && is_aligned(tensors.out);
  params.q = strided(tensors.q);
  params.k = strided(tensors.k);
  params.v = strided(tensors.v);
  params.out = strided(tensors.out);
  params.lse = static_cast<float*>(tensors.lse.data);
  params.lse_row_stride = tensors.lse.row_stride;
  params.lse_head_stride = tensors.lse.head_stride;
  params.state = static_cast<float*>(tensors.state);
  // Partial states of split items lie behind the carried ones.
  params.partials = params.state + carried_slots(bound.plan()) * state_slot_bytes(tile_dim(header.head_dim)) /
                                       std::int64_t{sizeof(float)};
  set_scales(params, options);
  return params;
}

}  // namespace

CudaBackend::CudaBackend(int device, std::optional<cudaStream_t> stream, CudaKernels kernels,
                         std::unique_ptr<DeviceMemory> memory)
    : device_(device), memory_(memory ? std::move(memory) : std::make_unique<OwnMemory>()) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "looking for GPUs");
  require(device >= 0 && device < count, "device {} is not one of the {} GPUs", device, count);
  select_device();
  if (stream) {
    stream_ = *stream;
  } else {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    own_stream_.reset(stream_);
  }
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "reading the GPU's properties");
  if (properties.major < 8)
    throw BackendError(fmt::format("device {} ({}) has compute capability {}.{}; the cuda backend needs 8.0 or newer",
                                   device, properties.name, properties.major, properties.minor));
  num_multiprocessors_ = properties.multiProcessorCount;
  if (kernels != CudaKernels::compact) shared_bytes_ = static_cast<int>(properties.sharedMemPerBlockOptin);
  cache_bytes_ = properties.l2CacheSize;
  is_hopper_ = kernels == CudaKernels::best && properties.major == 9 && properties.minor == 0;
  uploads_.emplace(stream_, *memory_);
  counter_ = uploads_->allocate(sizeof(std::int32_t));
}

void CudaBackend::select_device() const {
  check_cuda(cudaSetDevice(device_), "selecting the GPU");
}

void CudaBackend::check_supported(const RankPlan& plan, DType dtype, const AttentionOptions& options) const {
  const RankPlanHeader& header = plan.header();
  require(dtype == DType::bf16 || dtype == DType::fp16, "dtype {} is not supported by the cuda backend; nearest: bf16",
          to_string(dtype));
  require(header.head_dim >= 1 && header.head_dim <= kMaxHeadDim,
          "head_dim {} is not supported by the cuda backend (1 to {}); nearest: {}", header.head_dim, kMaxHeadDim,
          std::clamp(header.head_dim, 1, kMaxHeadDim));
  require(header.block == kBlock, "block {} is not supported by the cuda backend; nearest: {}", header.block, kBlock);
  require(std::isfinite(options.softmax_scale), "softmax_scale {} is not finite", options.softmax_scale);
  require(std::isfinite(options.softcap) && options.softcap >= 0.0,
          "softcap {} is not supported by the cuda backend; nearest: 0 (none)", options.softcap);
}

std::unique_ptr<BoundPlan> CudaBackend::bind(const RankPlan& plan) {
  select_device();
  return std::make_unique<CudaBoundPlan>(plan, num_multiprocessors_, *uploads_);
}

std::int64_t CudaBackend::state_bytes(const RankPlan& plan) const {
  std::int64_t partial_slots = 0;
  for (const Work& work : plan.works()) {
    const std::int64_t splits = forward_splits(plan, work, num_multiprocessors_);
    if (splits > 1)
      partial_slots = std::max(partial_slots, plan.header().local_heads * work.forward_items.size() * splits);
  }
  return (carried_slots(plan) + partial_slots) * state_slot_bytes(tile_dim(plan.header().head_dim));
}

std::int64_t CudaBackend::dq_accumulator_bytes(const RankPlan& plan) const {
  return cuda::dq_accumulator_bytes(plan);
}

void* CudaBackend::allocate(std::int64_t bytes) {
  select_device();
  return memory_->allocate(bytes);
}

void CudaBackend::free(void* data) noexcept {
  memory_->free(data);
}

void CudaBackend::copy_from_host(void* target, const void* source, std::int64_t bytes) {
  select_device();
  check_cuda(cudaMemcpyAsync(target, source, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_),
             "copying to the GPU");
}

void CudaBackend::copy_to_host(void* target, const void* source, std::int64_t bytes) {
  select_device();
  check_cuda(cudaMemcpyAsync(target, source, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
             "copying from the GPU");
  synchronize();
}

void CudaBackend::forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
                          const AttentionOptions& options) {
  const CudaBoundPlan& bound = bound_here(plan);
  ForwardParams params = make_params(bound, work, tensors, options);
  if (params.num_items == 0 || params.num_heads == 0) return;
  select_device();
  clear_key_gaps(bound.work(work), tensors.k, tensors.v, stream_);
  const DType dtype = tensors.q.dtype;
  const int dim = tile_dim(params.head_dim);
  if (is_hopper_ && params.is_aligned) {
    params.counter = counter_.as<std::int32_t>();
    check_cuda(cudaMemsetAsync(params.counter, 0, sizeof(std::int32_t), stream_), "resetting the work counter");
    const std::int64_t units = std::int64_t{params.num_heads} * params.num_items * params.num_splits;
    const auto num_ctas = static_cast<int>(std::min<std::int64_t>(units, num_multiprocessors_));
    const ForwardTensorMaps maps = {make_tensor_map(tensors.q, params.valid_query_rows, kBlock),
                                    make_tensor_map(tensors.k, params.valid_key_rows, forward_tile_keys(dim)),
                                    make_tensor_map(tensors.v, params.valid_key_rows, forward_tile_keys(dim))};
    launch_attention_forward_sm90(params, maps, dtype, dim, num_ctas, stream_);
  } else {
    launch_attention_forward_sm80(params, dtype, dim, stream_);
  }
  if (params.num_splits > 1) launch_attention_merge(params, dtype, dim, stream_);
  tiles_computed_ += bound.work(work).forward_tiles;
}

void CudaBackend::backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                           const AttentionOptions& options) {
  const CudaBoundPlan& bound = bound_here(plan);
  select_device();
  clear_key_gaps(bound.work(work), tensors.k, tensors.v, stream_);
  attend_backward(
      bound, work, tensors, options,
      {stream_, num_multiprocessors_, counter_.as<std::int32_t>(), is_hopper_, shared_bytes_, cache_bytes_});
  tiles_computed_ += bound.work(work).backward_tiles;
}

void CudaBackend::prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                                   std::int64_t valid_rows) {
  select_device();
  row_products(out, dout, delta, valid_rows, stream_);
}

void CudaBackend::finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) {
  select_device();
  cuda::finish_dq(plan, dq_accumulator, dq, stream_);
}

void CudaBackend::cast(const TensorView& source, const TensorView& target) {
  select_device();
  cast_elements(source, target, stream_);
}

void CudaBackend::copy(std::span<const Copy> copies) {
  select_device();
  copy_elements(copies, stream_);
}

void CudaBackend::zero(void* data, std::int64_t bytes) {
  select_device();
  check_cuda(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream_), "zeroing memory");
}

void CudaBackend::synchronize() {
  select_device();
  check_cuda(cudaStreamSynchronize(stream_), "waiting for the GPU");
}

std::unique_ptr<Timeline> CudaBackend::make_timeline() {
  select_device();
  return std::make_unique<CudaTimeline>(stream_);
}

}  // namespace marble::cuda

namespace marble {

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Backend> make_cuda_backend(int device) {
  return std::make_unique<cuda::CudaBackend>(device, std::nullopt);
}

std::unique_ptr<Backend> make_cuda_backend(int device, void* stream, std::unique_ptr<DeviceMemory> memory,
                                           CudaKernels kernels) {
  return std::make_unique<cuda::CudaBackend>(device, static_cast<cudaStream_t>(stream), kernels, std::move(memory));
}

}  // namespace marble
