// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/tile_map.hpp"

#include <algorithm>
#include <bit>

namespace marble {
namespace {

std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}

/// Appends [begin, end), joined to the last run of `runs` from `first` on when both are of one class and touch.
void append_run(std::vector<Run>& runs, std::size_t first, std::int64_t begin, std::int64_t end,
                BlockClass block_class) {
  if (begin >= end) return;
  if (runs.size() > first && runs.back().end == begin && runs.back().block_class == block_class)
    runs.back().end = narrow(end);
  else
    runs.push_back({narrow(begin), narrow(end), block_class});
}

/// A set of block numbers that is walked in ascending order: bits, and a bit for each non-zero word of them.
class BlockSet {
 public:
  explicit BlockSet(std::int64_t size)
      : words_(static_cast<std::size_t>(size) / 64 + 1), summary_(words_.size() / 64 + 1) {}

  void assign(std::int64_t block, bool member) {
    const auto b = static_cast<std::size_t>(block), w = b / 64;
    const std::uint64_t bit = std::uint64_t{1} << (b % 64), summary_bit = std::uint64_t{1} << (w % 64);
    words_[w] = member ? words_[w] | bit : words_[w] & ~bit;
    summary_[w / 64] = words_[w] != 0 ? summary_[w / 64] | summary_bit : summary_[w / 64] & ~summary_bit;
  }

  template <typename Fn>
  void for_each(Fn&& fn) const {
    for (std::size_t s = 0; s < summary_.size(); ++s)
      for (std::uint64_t rest = summary_[s]; rest != 0; rest &= rest - 1) {
        const std::size_t w = s * 64 + static_cast<std::size_t>(std::countr_zero(rest));
        for (std::uint64_t word = words_[w]; word != 0; word &= word - 1)
          fn(static_cast<std::int64_t>(w * 64) + std::countr_zero(word));
      }
  }

 private:
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> summary_;
};

/// The class of every key block for the query block that a sweep has reached, and where it changes along the key
/// blocks.
class SweepState {
 public:
  explicit SweepState(std::int64_t num_key_blocks)
      : classes_(static_cast<std::size_t>(num_key_blocks) + 2, kEmpty), changes_(num_key_blocks + 1) {}

  void set(std::int64_t key_block, std::int8_t block_class) {
    classes_[static_cast<std::size_t>(key_block) + 1] = block_class;
    update(key_block);
    update(key_block + 1);
  }

  /// Appends the runs; returns the block pairs in them.
  std::int64_t append_runs(std::vector<Run>& runs) const {
    std::int64_t tiles = 0, begin = 0;
    changes_.for_each([&](std::int64_t block) {
      const std::int8_t before = classes_[static_cast<std::size_t>(block)];
      if (before != kEmpty) {
        runs.push_back({narrow(begin), narrow(block), static_cast<BlockClass>(before)});
        tiles += block - begin;
      }
      begin = block;
    });
    return tiles;
  }

  static constexpr std::int8_t kEmpty = -1;

 private:
  void update(std::int64_t block) {
    const auto b = static_cast<std::size_t>(block);
    changes_.assign(block, classes_[b] != classes_[b + 1]);
  }

  std::vector<std::int8_t> classes_;  // of key block b at b + 1, with an empty one at each end
  BlockSet changes_;
};

struct Event {
  std::int32_t key_block;
  std::int8_t block_class;
};

/// Where runs begin and end along the query blocks, ends before begins, grouped by query block (counting sort).
class Events {
 public:
  Events(const KeyMajorRuns& key_major, std::int64_t num_query_blocks)
      : begin_(static_cast<std::size_t>(num_query_blocks) + 2, 0) {
    for (const Run& run : key_major.runs) {
      ++begin_[static_cast<std::size_t>(run.begin) + 1];
      ++begin_[static_cast<std::size_t>(run.end) + 1];
    }
    for (std::size_t q = 1; q < begin_.size(); ++q) begin_[q] += begin_[q - 1];
    events_.resize(key_major.runs.size() * 2);
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
    fill(key_major, next, false);
    fill(key_major, next, true);
  }

  [[nodiscard]] std::span<const Event> at(std::int64_t query_block) const {
    const auto q = static_cast<std::size_t>(query_block);
    return std::span(events_).subspan(static_cast<std::size_t>(begin_[q]),
                                      static_cast<std::size_t>(begin_[q + 1] - begin_[q]));
  }

 private:
  void fill(const KeyMajorRuns& key_major, std::vector<std::int64_t>& next, bool begins) {
    for (std::int64_t k = 0; k < key_major.num_key_blocks(); ++k)
      for (const Run& run : key_major.of(k)) {
        const auto q = static_cast<std::size_t>(begins ? run.begin : run.end);
        events_[static_cast<std::size_t>(next[q]++)] = {
            narrow(k), begins ? static_cast<std::int8_t>(run.block_class) : SweepState::kEmpty};
      }
  }

  std::vector<std::int64_t> begin_;
  std::vector<Event> events_;
};

}  // namespace

void append_query_runs(const KeyBlocks& keys, const KeyBlock& block, const RankRows& rows, std::int64_t block_rows,
                       std::vector<Run>& runs) {
  const std::size_t first = runs.size();
  const std::span<const Interval> full = keys.in(block.full);
  std::size_t f = 0;
  std::int64_t done = 0;  // query blocks below this are classified
  for (const Interval& visible : keys.in(block.visible)) {
    const std::int64_t row_begin = rows.before(visible.begin), row_end = rows.before(visible.end);
    if (row_begin >= row_end) continue;
    const std::int64_t end = (row_end + block_rows - 1) / block_rows;
    std::int64_t begin = std::max(done, row_begin / block_rows);
    for (; f < full.size() && full[f].begin < visible.end; ++f) {
      const std::int64_t full_row_end = rows.before(full[f].end);
      const std::int64_t full_begin = std::max(begin, (rows.before(full[f].begin) + block_rows - 1) / block_rows);
      const std::int64_t full_end =
          full_row_end == rows.size() ? (full_row_end + block_rows - 1) / block_rows : full_row_end / block_rows;
      if (full_begin >= full_end) continue;
      append_run(runs, first, begin, full_begin, BlockClass::partial);
      append_run(runs, first, full_begin, full_end, BlockClass::full);
      begin = full_end;
    }
    append_run(runs, first, begin, end, BlockClass::partial);
    done = std::max(done, end);
  }
}

std::span<const Run> KeyMajorRuns::of(std::int64_t key_block) const {
  const auto k = static_cast<std::size_t>(key_block);
  return std::span(runs).subspan(static_cast<std::size_t>(begin[k]), static_cast<std::size_t>(begin[k + 1] - begin[k]));
}

std::vector<Item> transpose(const KeyMajorRuns& key_major, std::int64_t num_query_blocks, std::vector<Run>& runs) {
  const Events events(key_major, num_query_blocks);
  SweepState state(key_major.num_key_blocks());
  std::vector<Item> items;
  Item shared;  // the runs of the query block before
  for (std::int64_t q = 0; q < num_query_blocks; ++q) {
    const std::span<const Event> changes = events.at(q);
    for (const Event& event : changes) state.set(event.key_block, event.block_class);
    if (!changes.empty()) {
      shared.run_begin = static_cast<std::int64_t>(runs.size());
      shared.tiles = narrow(state.append_runs(runs));
      shared.run_count = narrow(static_cast<std::int64_t>(runs.size()) - shared.run_begin);
    }
    if (shared.tiles == 0) continue;
    shared.block = narrow(q);
    items.push_back(shared);
  }
  return items;
}

std::vector<Item> key_major_items(const KeyMajorRuns& key_major, std::vector<Run>& runs) {
  const auto base = static_cast<std::int64_t>(runs.size());
  runs.insert(runs.end(), key_major.runs.begin(), key_major.runs.end());
  std::vector<Item> items;
  for (std::int64_t k = 0; k < key_major.num_key_blocks(); ++k) {
    const std::span<const Run> of_block = key_major.of(k);
    if (of_block.empty()) continue;
    Item item{.block = narrow(k),
              .run_begin = base + key_major.begin[static_cast<std::size_t>(k)],
              .run_count = narrow(static_cast<std::int64_t>(of_block.size()))};
    for (const Run& run : of_block) item.tiles += run.end - run.begin;
    items.push_back(item);
  }
  return items;
}

void sort_by_tiles(std::vector<Item>& items) {
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.tiles > b.tiles; });
}

}  // namespace marble
