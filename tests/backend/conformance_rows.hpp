// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Part of the conformance suite: memory, row operations and refusals.

#include "backend/backend_conformance.hpp"
#include "backend/device_tensor.hpp"

#include <numeric>

namespace marble::testing {

/// `count` values that fp32 and bf16 hold exactly.
inline std::vector<double> counting(std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<double>(i % 200) - 100.0;
  return values;
}

TEST_P(BackendConformance, PacksAndUnpacksStridedRows) {
  const std::unique_ptr<Backend> device = backend();
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    DeviceTensor source(*device, dtype, 9, 9, 3, 8, Strides::gaps);
    const std::vector<double> values = counting(9 * 3 * 8);
    source.set(values);
    const TensorView middle = source.view().block(2, 5, 1, 2);
    DeviceMemory packed(*device, middle.bytes());
    device->pack(middle, packed.data());
    DeviceTensor target(*device, dtype, 5, 5, 2, 8, Strides::heads_outermost);
    device->unpack(packed.data(), target.view(), false);
    device->synchronize();
    std::vector<double> expected;
    for (std::size_t row = 2; row < 7; ++row)
      for (std::size_t head = 1; head < 3; ++head)
        for (std::size_t d = 0; d < 8; ++d) expected.push_back(values[(row * 3 + head) * 8 + d]);
    EXPECT_EQ(target.get(), expected);
  }
}

TEST_P(BackendConformance, AddsPackedSumsInFp32) {
  const std::unique_ptr<Backend> device = backend();
  DeviceTensor target(*device, DType::fp32, 6, 7, 2, 5, Strides::gaps);
  const std::vector<double> values = counting(6 * 2 * 5);
  target.set(values);
  const TensorView rows = target.view().block(0, 6, 0, 2);
  DeviceMemory packed(*device, rows.bytes());
  device->pack(rows, packed.data());
  device->unpack(packed.data(), rows, true);
  device->synchronize();
  const std::vector<double> sums = target.get();
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(sums[i], 2 * values[i]);
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
