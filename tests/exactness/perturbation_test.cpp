// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Change one token: exactly the rows move that the mask rule lets it reach, and no other row moves by a single bit.

#include "exactness/subject.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace marble::exactness {
namespace {

constexpr float kChange = 8.0F;

class Perturbation : public testing::TestWithParam<std::size_t> {
 protected:
  Perturbation() : subject_(pack_of(layout_cases()[GetParam()]), {4, 2}, DType::fp32) {
    PlanOptions options = subject_.options();
    options.canonical = GetParam() % 2 == 0 ? Canonical::stack : Canonical::sequence;
    plan_ = subject_.plan({.ring = 3}, options);
    const Tracks tracks = to_tracks(plan_.layout);
    for (std::size_t t = 0; t < tracks.sample.size(); ++t)
      tracks_.push_back({tracks.sample[t], tracks.segment[t], tracks.noise[t], tracks.position[t]});
    base_ = subject_.run(plan_, subject_.inputs());
  }

  [[nodiscard]] std::size_t num_tokens() const { return tracks_.size(); }

  /// Tokens to change: the first, the last, and some between.
  [[nodiscard]] std::vector<std::size_t> tokens() const {
    std::vector<std::size_t> chosen = {0, num_tokens() - 1};
    for (std::size_t part = 1; part < 6; ++part) chosen.push_back(num_tokens() * part / 6);
    return chosen;
  }

  [[nodiscard]] bool sees(std::size_t query, std::size_t key) const {
    return is_legal(subject_.pack().rule, tracks_[query], tracks_[key]);
  }

  /// Results with all elements of a token's row of `tensor` changed.
  [[nodiscard]] RunResult run_changed(std::vector<float> DenseInputs::*tensor, std::size_t token) const {
    DenseInputs inputs = subject_.inputs();
    const std::size_t row = (inputs.*tensor).size() / num_tokens();
    for (std::size_t i = token * row; i < (token + 1) * row; ++i) (inputs.*tensor)[i] += kChange;
    return subject_.run(plan_, inputs);
  }

  [[nodiscard]] bool moved(const std::vector<float>& before, const std::vector<float>& after, std::size_t token) const {
    const auto row = static_cast<std::ptrdiff_t>(before.size() / num_tokens());
    const auto begin = static_cast<std::ptrdiff_t>(token) * row;
    return !std::equal(before.begin() + begin, before.begin() + begin + row, after.begin() + begin);
  }

  Subject subject_;
  Plan plan_;
  std::vector<TokenTracks> tracks_;
  RunResult base_;
};

TEST_P(Perturbation, AValueMovesTheOutputsThatMaySeeIt) {
  for (std::size_t key : tokens()) {
    const RunResult changed = run_changed(&DenseInputs::v, key);
    for (std::size_t query = 0; query < num_tokens(); ++query) {
      ASSERT_EQ(moved(base_.out, changed.out, query), sees(query, key)) << "key " << key << ", query " << query;
      ASSERT_FALSE(moved(base_.lse, changed.lse, query)) << "key " << key << ", query " << query;
    }
  }
}

TEST_P(Perturbation, AKeyMovesTheLseOfRowsThatMaySeeIt) {
  for (std::size_t key : tokens()) {
    const RunResult changed = run_changed(&DenseInputs::k, key);
    for (std::size_t query = 0; query < num_tokens(); ++query) {
      ASSERT_EQ(moved(base_.lse, changed.lse, query), sees(query, key)) << "key " << key << ", query " << query;
      ASSERT_FALSE(!sees(query, key) && moved(base_.out, changed.out, query)) << "key " << key << ", query " << query;
    }
  }
}

TEST_P(Perturbation, AnOutputGradientMovesTheKeyGradientsThatItSaw) {
  for (std::size_t query : tokens()) {
    const RunResult changed = run_changed(&DenseInputs::dout, query);
    for (std::size_t key = 0; key < num_tokens(); ++key) {
      ASSERT_EQ(moved(base_.dv, changed.dv, key), sees(query, key)) << "query " << query << ", key " << key;
      ASSERT_FALSE(!sees(query, key) && moved(base_.dk, changed.dk, key)) << "query " << query << ", key " << key;
      ASSERT_FALSE(key != query && moved(base_.dq, changed.dq, key)) << "query " << query << ", row " << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Packs, Perturbation, testing::Range<std::size_t>(0, layout_cases().size()));

}  // namespace
}  // namespace marble::exactness
