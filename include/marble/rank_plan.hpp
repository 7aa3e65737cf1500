// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One rank's work and transfers for one layer kind, forward and backward: a flat, pointer-free, versioned byte buffer.
// The executor walks `steps`, the backend reads `works`, `items` and `runs`, the transport moves what `transfers` name.
// Everything a strategy decides is in these arrays; nobody asks which strategy made them.
//
// Invariants, checked by `from_bytes`:
//   1. Rows of a buffer are ascending canonical indices; pad rows sit at the tail only.
//   2. Block b of a buffer is rows [b * block, (b + 1) * block), cut at the buffer's valid rows.
//   3. Every index lies inside the array or buffer that it points into.
//   4. A run lists consecutive blocks of one class; empty block pairs are in no run.
//   5. Both sides of a transfer list the transfers of one exchange between them in the same order and sizes.

#include "marble/mask.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// A half-open range of entries of another section.
struct SectionRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// Canonical query indices that may see a key of canonical index k:
///   [max(lo_min, k + lo_offset), min(hi_max, max(hi_min, k + hi_offset)))
/// Constant ends use offset kNoOffset. Both ends never descend as k grows.
struct VisibleRule {
  static constexpr std::int64_t kNoOffset = -(std::int64_t{1} << 60);
  std::int64_t lo_min = 0;
  std::int64_t lo_offset = kNoOffset;
  std::int64_t hi_max = 0;
  std::int64_t hi_min = 0;
  std::int64_t hi_offset = kNoOffset;

  MARBLE_HOST_DEVICE constexpr std::int64_t lo(std::int64_t k) const {
    const std::int64_t moving = k + lo_offset;
    return moving > lo_min ? moving : lo_min;
  }
  MARBLE_HOST_DEVICE constexpr std::int64_t hi(std::int64_t k) const {
    const std::int64_t moving = k + hi_offset > hi_min ? k + hi_offset : hi_min;
    return moving < hi_max ? moving : hi_max;
  }
  friend bool operator==(const VisibleRule&, const VisibleRule&) = default;
};

/// Rows [row, row + length) of a buffer that hold consecutive canonical indices and consecutive positions of one span.
/// Tracks for the four-track test, `rule` (an entry of `rules`) for the visible-range test.
struct Segment {
  std::int64_t row = 0;
  std::int64_t length = 0;
  std::int64_t canonical = 0;
  std::int64_t position = 0;
  std::int32_t sample = 0;
  std::int32_t segment = -1;
  std::int32_t noise = -1;
  std::int32_t rule = -1;
};

enum class BlockClass : std::int32_t { partial = 0, full = 1 };

/// Blocks [begin, end) of the other side, all of one class.
struct Run {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  BlockClass block_class = BlockClass::partial;
};

/// One block's work within a step: forward, a query block and its runs of key blocks; backward, a key block and its
/// runs of query blocks. Items of a work are sorted by tiles, largest first.
struct Item {
  static constexpr std::int32_t kFirst = 1;  // forward: the query block's state starts here, load none
  static constexpr std::int32_t kLast = 2;   // forward: normalise, write output and LSE, store no state
  std::int32_t block = 0;
  std::int32_t flags = 0;
  std::int64_t run_begin = 0;  // into `runs`
  std::int32_t run_count = 0;
  std::int32_t tiles = 0;  // visible block pairs, the item's cost
};

/// Element type of a buffer: the caller's dtype, or fp32 for whatever is summed across calls or ranks.
enum class BufferType : std::int32_t { io = 0, fp32 = 1 };

/// A tensor [rows, heads, head_dim], or [rows, heads] when `scalar`. Buffers 0 to kNumTensors - 1 are the caller's
/// tensors (enum Tensor); the rest is workspace that the executor lays out.
struct BufferDesc {
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  BufferType type = BufferType::io;
  std::int32_t scalar = 0;
  std::int32_t zeroed = 0;  // starts a pass as zeros (sums are added into it)
  std::int32_t saved = 0;   // written by forward, read by backward: lives in memory that the caller keeps
  std::int32_t reserved = 0;
};

/// The caller's tensors: this rank's rows, all heads of the model. lse and delta (rowsum of output times its gradient)
/// are scalars; delta is made by the executor.
enum class Tensor : std::int32_t { q, k, v, out, lse, dout, delta, dq, dk, dv };
inline constexpr std::int32_t kNumTensors = 10;

/// Rows [row, row + rows) x heads [head, head + heads) of `buffer`, to or from `peer`. A receive with `add` is summed
/// into the buffer, in the order listed; otherwise it overwrites. peer may be this rank.
struct Transfer {
  std::int32_t peer = 0;
  std::int32_t buffer = 0;
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int32_t head = 0;
  std::int32_t heads = 0;
  std::int32_t add = 0;
  std::int32_t reserved = 0;
};

/// One grouped set of transfers. Sends and receives between two ranks pair up in the order listed.
struct Exchange {
  SectionRange sends;  // into `transfers`
  SectionRange recvs;
};

/// Attention of this rank's queries over one key buffer.
struct Work {
  std::int32_t q = 0, k = 0, v = 0, out = 0, lse = 0;  // forward buffers
  std::int32_t dout = 0, delta = 0, dk = 0, dv = 0;    // backward buffers; dk and dv are fp32 and added into
  std::int32_t clear_gradients = 0;                    // dk and dv hold an earlier step's partials: zero them first
  std::int64_t key_rows = 0;                           // extent of the key buffer in use, pads included
  SectionRange key_segments;                           // into `segments`; rows in no segment are pads
  SectionRange key_valid;                              // into `key_valid`: valid rows of each key block
  SectionRange forward_items;                          // into `items`
  SectionRange backward_items;
  std::int64_t tiles = 0;  // block pairs of the forward items; backward may split them over two works of the same keys
};

/// Local cast of a finished sum into a buffer of the caller's dtype.
struct Finish {
  std::int32_t source = 0;  // fp32 buffer, or kDQ: the backend's dQ accumulator
  std::int32_t target = 0;
  static constexpr std::int32_t kDQ = -1;
};

/// Fetch before the work, finish and return after it; each may be absent (-1, or an empty range).
struct Step {
  std::int32_t fetch = -1;      // into `exchanges`
  std::int32_t work = -1;       // into `works`
  SectionRange finishes;        // into `finishes`
  std::int32_t give_back = -1;  // into `exchanges`: returns partial sums, or outputs, to their owners
  std::int32_t reserved = 0;
};

struct RankPlanHeader {
  static constexpr std::uint64_t kMagic = 0x314e4c5052424d4dULL;
  static constexpr std::uint32_t kVersion = 1;
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t layer = 0;
  std::uint64_t plan_digest = 0;
  std::uint64_t bytes = 0;     // of the whole buffer
  std::uint64_t checksum = 0;  // FNV-1a of everything after the header
  std::int32_t rank = 0, num_ranks = 1;
  std::int32_t heads = 0, kv_heads = 0;              // of the model
  std::int32_t local_heads = 0, local_kv_heads = 0;  // attended by this rank
  std::int32_t head_dim = 0;
  std::int32_t block = 128;
  std::int64_t rows = 0;        // of every rank's tensors, pads included
  std::int64_t valid_rows = 0;  // tokens that this rank holds
  std::int64_t query_rows = 0;  // rows attended by this rank, pads included
  std::int64_t valid_query_rows = 0;
  std::int64_t window = 0;
  std::int32_t clamp = 0;
  std::int32_t uses_tracks = 0;  // partial blocks need the four-track test
  static constexpr int kNumSections = 14;
  struct Section {
    std::uint64_t offset = 0;  // bytes from the start of the buffer, a multiple of 16
    std::uint64_t count = 0;   // entries
  };
  Section sections[kNumSections] = {};
};

/// Read-only views of a rank plan's sections.
class RankPlan {
 public:
  RankPlan() = default;

  /// Validates magic, version, sizes, checksum and the invariants above; throws InvalidArgument naming what is wrong.
  [[nodiscard]] static RankPlan from_bytes(std::vector<std::byte> bytes);

  /// The bytes that the planner itself laid out, unchecked.
  [[nodiscard]] static RankPlan from_assembled(std::vector<std::byte> bytes);

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const RankPlanHeader& header() const;
  [[nodiscard]] std::span<const BufferDesc> buffers() const;
  [[nodiscard]] std::span<const std::int32_t> head_map() const;  // local query head -> local key head
  [[nodiscard]] std::span<const Segment> query_segments() const;
  [[nodiscard]] std::span<const Segment> segments() const;
  [[nodiscard]] std::span<const VisibleRule> rules() const;
  [[nodiscard]] std::span<const Step> forward_steps() const;
  [[nodiscard]] std::span<const Step> backward_steps() const;
  [[nodiscard]] std::span<const Work> works() const;
  [[nodiscard]] std::span<const Item> items() const;
  [[nodiscard]] std::span<const Run> runs() const;
  [[nodiscard]] std::span<const std::int32_t> key_valid() const;
  [[nodiscard]] std::span<const Exchange> exchanges() const;
  [[nodiscard]] std::span<const Transfer> transfers() const;
  [[nodiscard]] std::span<const Finish> finishes() const;

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace marble
