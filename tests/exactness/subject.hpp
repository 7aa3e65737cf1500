// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One pack with random tensors and its fp64 truth, against which any number of distributed runs are judged.

#include "exactness/layouts.hpp"
#include "verify/dense_reference.hpp"
#include "verify/rank_run.hpp"

#include "marble/verify.hpp"

#include <cstdint>
#include <map>
#include <optional>

namespace marble::exactness {

struct Heads {
  std::int32_t query = 2;
  std::int32_t key = 2;
};

/// What a subject is made of.
struct Pack {
  Layout layout;
  MaskRule rule;
  std::int32_t head_dim = 16;
  std::int32_t block = 16;
};

[[nodiscard]] Pack pack_of(const LayoutCase& layout_case);

/// Where a subject is computed.
struct Device {
  BackendFactory backend = make_cpu_backend;
  std::optional<int> reference_gpu = std::nullopt;
};

class Subject {
 public:
  Subject(const Pack& pack, const Heads& heads, DType dtype, double softcap = 0.0, const Device& device = {});

  [[nodiscard]] const Pack& pack() const { return pack_; }
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] DType dtype() const { return options_.dtype; }
  [[nodiscard]] const AttentionOptions& attention() const { return options_.attention; }
  [[nodiscard]] const DenseInputs& inputs() const { return inputs_; }

  /// A ring over PTRR blocks, with this subject's block.
  [[nodiscard]] PlanOptions options() const;
  [[nodiscard]] Plan plan(const Mesh& mesh, const PlanOptions& options) const {
    return make_plan(pack_.layout, model_, mesh, options);
  }

  [[nodiscard]] RunResult run(const Plan& plan, const DenseInputs& inputs, const BackendFactory& backend) const;
  [[nodiscard]] RunResult run(const Plan& plan, const DenseInputs& inputs) const {
    return run(plan, inputs, options_.backend);
  }

  /// Runs `plan`, which may be one for another mask over as many tokens, and judges it by this subject's truth.
  [[nodiscard]] VerifyResult judge(const Plan& plan, const BackendFactory& backend);
  [[nodiscard]] VerifyResult judge(const Plan& plan) { return judge(plan, options_.backend); }

 private:
  [[nodiscard]] const RunResult& single_run(const Plan& plan);

  Pack pack_;
  Model model_;
  VerifyOptions options_;
  DenseInputs inputs_;
  DenseResult truth_;
  std::map<Canonical, RunResult> single_runs_;
};

}  // namespace marble::exactness
