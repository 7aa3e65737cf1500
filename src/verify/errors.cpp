// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/errors.hpp"

#include "base/numeric.hpp"
#include "base/parallel.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

namespace marble {
namespace {

constexpr double kCancelled = 1e-9;

/// Sum of term(i) over [0, count): in parts of a fixed size, so that it does not depend on the number of threads.
template <typename Term>
double sum_of(std::size_t count, int threads, Term&& term) {
  constexpr std::size_t kPart = 1U << 18;
  std::vector<double> parts((count + kPart - 1) / kPart);
  parallel_for(std::ssize(parts), threads, [&](std::int64_t part) {
    const std::size_t begin = static_cast<std::size_t>(part) * kPart;
    double sum = 0.0;
    for (std::size_t i = begin; i < std::min(count, begin + kPart); ++i) sum += term(i);
    parts[static_cast<std::size_t>(part)] = sum;
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

double square(double value) {
  return value * value;
}

template <typename T>
double norm(std::span<const T> values, int threads) {
  return std::sqrt(
      sum_of(values.size(), threads, [&](std::size_t i) { return square(static_cast<double>(values[i])); }));
}

/// Frobenius distance over the truth's norm, with value(i) the i-th value.
template <typename Value>
double relative_distance(std::span<const double> truth, double natural, int threads, Value&& value) {
  const double distance = std::sqrt(
      sum_of(truth.size(), threads, [&](std::size_t i) { return square(static_cast<double>(value(i)) - truth[i]); }));
  const double size = norm(truth, threads);
  const double unit = size > kCancelled * natural ? size : natural;
  return distance == 0.0 ? 0.0 : distance / unit;
}

/// Bounds of one tensor; adds a line for each that is missed. Written so that NaN misses.
class Judge {
 public:
  Judge(DType dtype, bool rounds_products, int threads, VerifyResult& result)
      : dtype_(dtype),
        product_rounding_(rounds_products ? unit_roundoff(dtype) : 0.0),
        threads_(threads),
        result_(result) {}

  template <typename... Args>
  void expect(bool holds, fmt::format_string<Args...> message, Args&&... args) {
    if (!holds) result_.failures.push_back(fmt::format(message, std::forward<Args>(args)...));
  }

  template <typename T>
  VerifyError tensor(std::string_view name, const std::vector<float>& distributed, const std::vector<float>& single,
                     const std::vector<T>& exact, const std::vector<double>& truth, double natural) {
    VerifyError error;
    error.error = relative_error(distributed, truth, natural, threads_);
    error.single_rank_error = relative_error(single, truth, natural, threads_);
    error.rounding = rounding_error<T>(exact, truth, dtype_, natural, threads_);
    error.ratio = error.error == 0.0 && error.single_rank_error == 0.0 ? 1.0 : error.error / error.single_rank_error;
    if (dtype_ == DType::fp32) {
      expect(error.error <= kMaxFp32Error, "{}: error {:.3g} is over {:.3g}", name, error.error, kMaxFp32Error);
      expect(error.single_rank_error <= kMaxFp32Error, "{}: one rank's error {:.3g} is over {:.3g}", name,
             error.single_rank_error, kMaxFp32Error);
      return error;
    }
    // Below fp32's own noise there is no 16-bit rounding left to compare (a gradient that cancels exactly).
    const bool noise = error.error <= kMaxFp32Error && error.single_rank_error <= kMaxFp32Error;
    if (noise) error.ratio = 1.0;
    expect(noise || error.ratio <= kMaxRatio, "{}: error {:.4g} is {:.4g} times one rank's {:.4g}, over {}", name,
           error.error, error.ratio, error.single_rank_error, kMaxRatio);
    const double most = kMaxOverRounding * error.rounding + product_rounding_;
    expect(noise || error.single_rank_error <= most,
           "{}: one rank's error {:.4g} is over {:.4g}, which is {} times that of rounding once, {:.4g}{}", name,
           error.single_rank_error, most, kMaxOverRounding, error.rounding,
           product_rounding_ > 0.0 ? ", and what rounded products add" : "");
    return error;
  }

 private:
  DType dtype_;
  double product_rounding_;  // the largest share of a norm that rounding the operands of products can take
  int threads_;
  VerifyResult& result_;
};

}  // namespace

double relative_error(std::span<const float> values, std::span<const double> truth, double natural, int threads) {
  ensure(values.size() == truth.size(), "{} values against {} of the truth", values.size(), truth.size());
  return relative_distance(truth, natural, threads, [&](std::size_t i) { return values[i]; });
}

template <typename T>
double rounding_error(std::span<const T> exact, std::span<const double> truth, DType dtype, double natural,
                      int threads) {
  return relative_distance(truth, natural, threads, [&](std::size_t i) {
    std::uint32_t rounded = 0;
    store_element(&rounded, dtype, 0, static_cast<float>(exact[i]));
    return load_element(&rounded, dtype, 0);
  });
}
template double rounding_error(std::span<const float>, std::span<const double>, DType, double, int);
template double rounding_error(std::span<const double>, std::span<const double>, DType, double, int);

double largest_difference(std::span<const float> values, std::span<const double> truth) {
  double largest = 0.0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (static_cast<double>(values[i]) == truth[i]) continue;
    const double difference = std::abs(static_cast<double>(values[i]) - truth[i]);
    largest = std::isfinite(difference) ? std::max(largest, difference) : std::numeric_limits<double>::infinity();
  }
  return largest;
}

void judge(const RunResult& distributed, const RunResult& single, const DenseResult& truth, const DenseInputs& inputs,
           const VerifyOptions& options, VerifyResult& result) {
  const int threads = std::max(1, options.threads);
  Judge judge(options.dtype, single.rounds_products, threads, result);
  result.out = judge.tensor("out", distributed.out, single.out, truth.out, truth.out, norm<float>(inputs.v, threads));
  if (!options.forward_only) {
    const double natural = norm<float>(inputs.dout, threads);
    const double scaled = natural * options.attention.softmax_scale;
    result.dq = judge.tensor("dq", distributed.dq, single.dq, truth.dq_stored, truth.dq, scaled);
    result.dk = judge.tensor("dk", distributed.dk, single.dk, truth.dk_stored, truth.dk, scaled);
    result.dv = judge.tensor("dv", distributed.dv, single.dv, truth.dv, truth.dv, natural);
  }
  result.lse_error = largest_difference(distributed.lse, truth.lse);
  result.single_rank_lse_error = largest_difference(single.lse, truth.lse);
  judge.expect(result.lse_error <= kMaxLseError, "lse: error {:.3g} is over {:.3g}", result.lse_error, kMaxLseError);
  judge.expect(result.single_rank_lse_error <= kMaxLseError, "lse: one rank's error {:.3g} is over {:.3g}",
               result.single_rank_lse_error, kMaxLseError);
  judge.expect(distributed.pads_written == 0 && single.pads_written == 0, "{} pad elements are not zero (LSE: -inf)",
               distributed.pads_written + single.pads_written);
  const VerifyCounts& ran = result.ran;
  for (const VerifyCounts& planned : {result.planned, distributed.rank_plans}) {
    judge.expect(ran.tiles == planned.tiles, "forward computed {} tiles, the plan has {}", ran.tiles, planned.tiles);
    judge.expect(ran.backward_tiles == planned.backward_tiles, "backward computed {} tiles, the plan has {}",
                 ran.backward_tiles, planned.backward_tiles);
    judge.expect(ran.received_tokens == planned.received_tokens, "ranks received {} key tokens, the plan has {}",
                 ran.received_tokens, planned.received_tokens);
  }
  result.pass = result.failures.empty();
}

}  // namespace marble
