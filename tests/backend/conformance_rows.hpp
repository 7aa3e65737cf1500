// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Part of the conformance suite: memory, row operations and refusals.

#include "backend/backend_conformance.hpp"
#include "backend/device_tensor.hpp"

#include <numeric>
#include <tuple>

namespace marble::testing {

/// `count` values that fp32 and bf16 hold exactly.
inline std::vector<double> counting(std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<double>(i % 200) - 100.0;
  return values;
}

inline TensorView dense_like(const TensorView& view, void* data) {
  return dense_view(data, view.dtype, view.rows, view.heads, view.dim);
}

TEST_P(BackendConformance, PacksAndUnpacksStridedRows) {
  const std::unique_ptr<Backend> device = backend();
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    DeviceTensor source(*device, dtype, 9, 9, 3, 8, Strides::gaps);
    const std::vector<double> values = counting(9 * 3 * 8);
    source.set(values);
    const TensorView middle = source.view().block(2, 5, 1, 2);
    DeviceMemory packed(*device, middle.bytes());
    const Copy pack{middle, dense_like(middle, packed.data())};
    device->copy({&pack, 1});
    DeviceTensor target(*device, dtype, 5, 5, 2, 8, Strides::heads_outermost);
    const Copy unpack{pack.target, target.view()};
    device->copy({&unpack, 1});
    device->synchronize();
    std::vector<double> expected;
    for (std::size_t row = 2; row < 7; ++row)
      for (std::size_t head = 1; head < 3; ++head)
        for (std::size_t d = 0; d < 8; ++d) expected.push_back(values[(row * 3 + head) * 8 + d]);
    EXPECT_EQ(target.get(), expected);
  }
}

/// Tensors of one exchange over three ranks of 28 query and 4 key heads: shares of 9, 9 and 10 heads, of 2 each.
struct UnevenShares {
  static constexpr std::int32_t kBegins[] = {0, 9, 18, 28}, kKeyBegins[] = {0, 2, 3, 4};
  DType dtype;
  std::int64_t rows;
  std::int32_t dim;

  /// Packs every share of `tensor` into dense memory and unpacks it into another tensor; one call of the backend each
  /// way for all tensors and shares.
  void check(Backend& device, Strides strides) const {
    struct Tensor {
      std::vector<double> values;
      DeviceTensor source, target;
    };
    std::vector<Tensor> tensors;
    for (const auto& [type, heads, width] :
         {std::tuple(dtype, 28, dim), std::tuple(dtype, 4, dim), std::tuple(DType::fp32, 28, 1)}) {
      tensors.push_back({counting(static_cast<std::size_t>(rows * heads * width)),
                         DeviceTensor(device, type, rows, rows, heads, width, strides),
                         DeviceTensor(device, type, rows, rows, heads, width, Strides::gaps)});
      tensors.back().source.set(tensors.back().values);
    }
    std::vector<DeviceMemory> memory;
    std::vector<Copy> packs, unpacks;
    for (const Tensor& tensor : tensors)
      for (int share = 0; share < 3; ++share) {
        const std::int32_t* const begins = tensor.source.view().heads == 28 ? kBegins : kKeyBegins;
        const auto of = [&](const DeviceTensor& whole) {
          return whole.view().block(0, rows, begins[share], begins[share + 1] - begins[share]);
        };
        memory.emplace_back(device, of(tensor.source).bytes());
        packs.push_back({of(tensor.source), dense_like(of(tensor.source), memory.back().data())});
        unpacks.push_back({packs.back().target, of(tensor.target)});
      }
    device.copy(packs);
    device.copy(unpacks);
    device.synchronize();
    for (const Tensor& tensor : tensors) EXPECT_EQ(tensor.target.get(), tensor.values);
  }
};

TEST_P(BackendConformance, CopiesAllTensorsAndSharesOfAnExchangeAtOnce) {
  const std::unique_ptr<Backend> device = backend();
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (std::int64_t rows : {1, 131, 517})
      for (std::int32_t dim : {1, 8, 37, 128})
        for (Strides strides : {Strides::dense, Strides::gaps, Strides::heads_outermost})
          UnevenShares{dtype, rows, dim}.check(*device, strides);
}

TEST_P(BackendConformance, CopiesMorePartsThanALaunchTakes) {
  const std::unique_ptr<Backend> device = backend();
  constexpr std::int64_t kRows = 130;
  DeviceTensor source(*device, DType::bf16, kRows, kRows, 2, 24, Strides::gaps);
  DeviceTensor target(*device, DType::bf16, kRows, kRows, 2, 24, Strides::heads_outermost);
  const std::vector<double> values = counting(kRows * 2 * 24);
  source.set(values);
  std::vector<Copy> copies;
  for (std::int64_t row = 0; row < kRows; ++row)  // an empty one beside each row
    for (std::int64_t rows : {1, 0})
      copies.push_back({source.view().block(row, rows, 0, 2), target.view().block(row, rows, 0, 2)});
  device->copy(copies);
  device->copy({});
  device->synchronize();
  EXPECT_EQ(target.get(), values);
}

TEST_P(BackendConformance, AddsSumsInFp32BesideCopies) {
  const std::unique_ptr<Backend> device = backend();
  for (std::int32_t dim : {5, 64}) {
    DeviceTensor sum(*device, DType::fp32, 131, 132, 2, dim, Strides::gaps);
    DeviceTensor added(*device, DType::fp32, 131, 131, 2, dim, Strides::heads_outermost);
    DeviceTensor copied(*device, DType::fp32, 131, 132, 2, dim, Strides::gaps);
    const std::vector<double> values = counting(static_cast<std::size_t>(131 * 2 * dim));
    sum.set(values);
    added.set(values);
    const auto rows_of = [](const DeviceTensor& tensor) { return tensor.view().block(0, 131, 0, 2); };
    const std::vector<Copy> copies = {{added.view(), rows_of(sum), true}, {added.view(), rows_of(copied)}};
    device->copy(copies);
    device->synchronize();
    const std::vector<double> sums = sum.get();
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(sums[i], 2 * values[i]);
    EXPECT_EQ(copied.get(), values);
  }
}

TEST_P(BackendConformance, CastsRoundingOnceToNearestEven) {
  const std::unique_ptr<Backend> device = backend();
  const std::vector<double> values = {0.0,     1.0,      1.0 + 0x1p-8, 1.0 + 0x1p-7, 1.0 + 3 * 0x1p-8, -1.0 - 0x1p-11,
                                      0x1p-20, 65504,    1e-30,        -3.14159,     1.0 + 0x1p-9,     1.0 + 0x1p-12,
                                      1e30,    -0x1p-26, 0x1p-24,      65519,        65520.0};
  const auto count = static_cast<std::int32_t>(values.size());
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    DeviceTensor wide(*device, DType::fp32, 1, 1, 1, count, Strides::dense);
    DeviceTensor narrow(*device, dtype, 1, 1, 1, count, Strides::gaps);
    DeviceTensor back(*device, DType::fp32, 1, 1, 1, count, Strides::dense);
    wide.set(values);
    device->cast(wide.view(), narrow.view());
    device->cast(narrow.view(), back.view());
    device->synchronize();
    EXPECT_EQ(narrow.get(), rounded(values, dtype));
    EXPECT_EQ(back.get(), rounded(values, dtype));
  }
}

TEST_P(BackendConformance, PreparesDeltaForValidRowsOnly) {
  const std::unique_ptr<Backend> device = backend();
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int32_t dim : {8, 37, 128}) {
      if (!GetParam().covers(dtype, dim)) continue;
      DeviceTensor out(*device, dtype, 5, 8, 3, dim, Strides::gaps);
      DeviceTensor dout(*device, dtype, 5, 8, 3, dim, Strides::heads_outermost);
      DeviceTensor delta(*device, DType::fp32, 5, 8, 3, 1, Strides::dense);
      const std::vector<double> values = counting(static_cast<std::size_t>(5 * 3 * dim));
      out.set(values);
      dout.set(values);
      device->prepare_backward(out.view(), dout.view(), delta.view(), 5);
      device->synchronize();
      const std::vector<double> sums = delta.get();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const double* row = &values[i * static_cast<std::size_t>(dim)];
        EXPECT_NEAR(sums[i], oracle::dot(row, row, dim), oracle::dot(row, row, dim) * 8 * unit_roundoff(DType::fp32));
      }
    }
  }
}

TEST_P(BackendConformance, FinishesDqWithZerosInPadRows) {
  const std::unique_ptr<Backend> device = backend();
  const AttentionCase problem = mixed_case();
  const RankPlan plan = make_brute_plan(problem.spec);
  const auto valid = static_cast<std::int64_t>(problem.spec.queries.size());
  DeviceTensor dq(*device, problem.dtype, valid, plan.header().query_rows, 1, problem.spec.head_dim, Strides::gaps);
  const DeviceMemory all_nan(*device, device->dq_accumulator_bytes(plan));
  device->finish_dq(plan, all_nan.data(), dq.view());
  device->synchronize();
  for (double value : dq.get(PadRows::zero)) EXPECT_TRUE(std::isnan(value));
}

TEST_P(BackendConformance, RefusesWhatItDoesNotCover) {
  const std::unique_ptr<Backend> device = backend();
  AttentionCase problem = mixed_case();
  const auto refuses = [&](const AttentionCase& bad, const std::string& value) {
    try {
      device->check_supported(make_brute_plan(bad.spec), bad.dtype, bad.options);
      ADD_FAILURE() << "accepted " << value;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(value), std::string::npos) << error.what();
    }
  };
  EXPECT_NO_THROW(device->check_supported(make_brute_plan(problem.spec), problem.dtype, problem.options));
  AttentionCase bad = problem;
  bad.spec.head_dim = 257;
  refuses(bad, "257");
  bad = problem;
  bad.spec.block = 257;
  refuses(bad, "257");
  bad = problem;
  bad.options.softcap = -1.0;
  refuses(bad, "softcap -1");
  bad = problem;
  bad.options.softmax_scale = std::numeric_limits<double>::quiet_NaN();
  refuses(bad, "softmax_scale nan");
}

}  // namespace marble::testing
