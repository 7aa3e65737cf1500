// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/brute_plan.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <optional>

namespace marble {
namespace {

using Indices = std::vector<std::int64_t>;

const TokenTracks& token(const BruteSpec& spec, std::int64_t canonical) {
  return spec.tokens[static_cast<std::size_t>(canonical)];
}

bool legal(const BruteSpec& spec, std::int64_t query, std::int64_t key) {
  return key != kPadKey && is_legal(spec.rule, token(spec, query), token(spec, key));
}

struct Interval {
  std::int64_t lo = 0;
  std::int64_t hi = 0;
};

/// The canonical queries of the whole pack that may see `key`, when they are one interval.
std::optional<Interval> visible_interval(const BruteSpec& spec, std::int64_t key) {
  const auto count = static_cast<std::int64_t>(spec.tokens.size());
  Interval interval{count, count};
  std::int64_t seen = 0;
  for (std::int64_t query = 0; query < count; ++query) {
    if (!legal(spec, query, key)) continue;
    if (seen++ == 0) interval.lo = query;
    interval.hi = query + 1;
  }
  if (seen == 0) return Interval{};
  if (interval.hi - interval.lo != seen) return std::nullopt;
  return interval;
}

/// True when `next` can follow `last` in one segment: same span, consecutive canonical index and position.
bool continues(const BruteSpec& spec, std::int64_t last, std::int64_t next) {
  if (next == kPadKey) return false;
  const TokenTracks& a = token(spec, last);
  const TokenTracks& b = token(spec, next);
  return next == last + 1 && b.position == a.position + 1 && a.sample == b.sample && a.segment == b.segment &&
         a.noise == b.noise;
}

/// Whether an end of the range is constant or moves with the key, over the keys of a segment.
struct EndForm {
  bool constant = true;
  bool moving = true;

  /// Narrows the form by two consecutive keys' ends; false when neither form is left.
  bool accept(std::int64_t last, std::int64_t next) {
    constant = constant && next == last;
    moving = moving && next == last + 1;
    return constant || moving;
  }
};

class SegmentMaker {
 public:
  SegmentMaker(const BruteSpec& spec, RankPlanParts& parts) : spec_(spec), parts_(parts) {}

  /// Appends the segments of `indices`, stored from row 0, to `segments`; with rules when they are keys.
  void append(const Indices& indices, bool keys, std::vector<Segment>& segments) {
    keys_ = keys && !spec_.use_tracks;
    for (std::size_t begin = 0; begin < indices.size();) {
      if (indices[begin] == kPadKey) {
        ++begin;
        continue;
      }
      const TokenTracks& tracks = token(spec_, indices[begin]);
      const std::size_t end = segment_end(indices, begin);
      Segment segment{static_cast<std::int64_t>(begin),
                      static_cast<std::int64_t>(end - begin),
                      indices[begin],
                      tracks.position,
                      tracks.sample,
                      tracks.segment,
                      tracks.noise,
                      -1};
      if (keys_) segment.rule = add_rule(indices[begin]);
      segments.push_back(segment);
      begin = end;
    }
  }

 private:
  Interval interval_of(std::int64_t key) const {
    const std::optional<Interval> interval = visible_interval(spec_, key);
    ensure(interval.has_value(), "key {} has no single visible range", key);
    return *interval;
  }

  std::size_t segment_end(const Indices& indices, std::size_t begin) {
    std::size_t end = begin + 1;
    lo_ = hi_ = {};
    Interval last = keys_ ? interval_of(indices[begin]) : Interval{};
    for (; end < indices.size() && continues(spec_, indices[end - 1], indices[end]); ++end) {
      if (!keys_) continue;
      const Interval next = interval_of(indices[end]);
      EndForm lo = lo_;
      EndForm hi = hi_;
      if (!lo.accept(last.lo, next.lo) || !hi.accept(last.hi, next.hi)) break;
      lo_ = lo;
      hi_ = hi;
      last = next;
    }
    return end;
  }

  std::int32_t add_rule(std::int64_t key) {
    const Interval interval = interval_of(key);
    VisibleRule rule;
    rule.lo_min = interval.lo;
    if (!lo_.constant) rule.lo_offset = interval.lo - key;
    rule.hi_min = interval.hi;
    rule.hi_max = hi_.constant ? interval.hi : static_cast<std::int64_t>(spec_.tokens.size());
    if (!hi_.constant) rule.hi_offset = interval.hi - key;
    parts_.rules.push_back(rule);
    return static_cast<std::int32_t>(parts_.rules.size()) - 1;
  }

  const BruteSpec& spec_;
  RankPlanParts& parts_;
  bool keys_ = false;
  EndForm lo_, hi_;
};

std::int64_t blocks_of(std::int64_t rows, std::int32_t block) {
  return (rows + block - 1) / block;
}

/// Block pair classes of one work: 0 empty, 1 partial, 2 full.
struct Classes {
  std::int64_t key_blocks = 0;
  std::vector<int> of;  // [query block][key block]

  int at(std::int64_t query_block, std::int64_t key_block) const {
    return of[static_cast<std::size_t>(query_block * key_blocks + key_block)];
  }
};

/// Keys of a block, pads left out.
std::int64_t valid_keys(const Indices& keys, std::int64_t block, std::int32_t block_rows) {
  const auto size = static_cast<std::int64_t>(keys.size());
  const auto begin = keys.begin() + std::min(size, block * block_rows);
  const auto end = keys.begin() + std::min(size, (block + 1) * block_rows);
  return std::count_if(begin, end, [](std::int64_t key) { return key != kPadKey; });
}

Classes classify(const BruteSpec& spec, const Indices& keys, std::int64_t query_blocks, std::int64_t key_blocks) {
  Classes classes{key_blocks, {}};
  const auto range_of = [&](std::int64_t block, const Indices& indices) {
    const auto size = static_cast<std::int64_t>(indices.size());
    return Interval{std::min(size, block * spec.block), std::min(size, (block + 1) * spec.block)};
  };
  for (std::int64_t qb = 0; qb < query_blocks; ++qb) {
    for (std::int64_t kb = 0; kb < key_blocks; ++kb) {
      const Interval query_range = range_of(qb, spec.queries);
      const Interval key_range = range_of(kb, keys);
      std::int64_t count = 0;
      for (std::int64_t q = query_range.lo; q < query_range.hi; ++q)
        for (std::int64_t k = key_range.lo; k < key_range.hi; ++k)
          count += legal(spec, spec.queries[static_cast<std::size_t>(q)], keys[static_cast<std::size_t>(k)]);
      const std::int64_t all = (query_range.hi - query_range.lo) * valid_keys(keys, kb, spec.block);
      classes.of.push_back(count == 0 ? 0 : (count == all ? 2 : 1));
    }
  }
  return classes;
}

/// Appends an item for `block` with the runs that `class_of(other block)` gives.
template <typename ClassOf>
void append_item(RankPlanParts& parts, std::int32_t block, std::int32_t flags, std::int64_t blocks,
                 const ClassOf& class_of) {
  Item item{block, flags, static_cast<std::int64_t>(parts.runs.size()), 0, 0};
  for (std::int32_t other = 0; other < blocks; ++other) {
    if (class_of(other) == 0) continue;
    const BlockClass block_class = class_of(other) == 2 ? BlockClass::full : BlockClass::partial;
    const bool joins =
        item.run_count > 0 && parts.runs.back().end == other && parts.runs.back().block_class == block_class;
    if (joins)
      parts.runs.back().end = other + 1;
    else
      parts.runs.push_back({other, other + 1, block_class});
    item.run_count += joins ? 0 : 1;
    ++item.tiles;
  }
  parts.items.push_back(item);
}

SectionRange sort_items(RankPlanParts& parts, std::size_t begin) {
  std::stable_sort(parts.items.begin() + static_cast<std::ptrdiff_t>(begin), parts.items.end(),
                   [](const Item& a, const Item& b) { return a.tiles > b.tiles; });
  return {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(parts.items.size())};
}

void append_items(RankPlanParts& parts, const std::vector<Classes>& classes, std::size_t index,
                  std::int64_t query_blocks, Work& work) {
  const Classes& mine = classes[index];
  const auto reaches = [&](std::int64_t qb, const Classes& other) {
    for (std::int64_t kb = 0; kb < other.key_blocks; ++kb)
      if (other.at(qb, kb) != 0) return true;
    return false;
  };
  const std::size_t forward_begin = parts.items.size();
  for (std::int32_t qb = 0; qb < query_blocks; ++qb) {
    bool before = false, after = false;
    for (std::size_t w = 0; w < classes.size(); ++w)
      if (w != index && reaches(qb, classes[w])) (w < index ? before : after) = true;
    const bool here = reaches(qb, mine) || (index == 0 && !after);  // the latter: no key at all
    if (!here) continue;
    append_item(parts, qb, (before ? 0 : Item::kFirst) | (after ? 0 : Item::kLast), mine.key_blocks,
                [&](std::int32_t kb) { return mine.at(qb, kb); });
    work.tiles += parts.items.back().tiles;
  }
  work.forward_items = sort_items(parts, forward_begin);
  const std::size_t backward_begin = parts.items.size();
  for (std::int32_t kb = 0; kb < mine.key_blocks; ++kb) {
    append_item(parts, kb, 0, query_blocks, [&](std::int32_t qb) { return mine.at(qb, kb); });
    if (parts.items.back().tiles == 0) parts.items.pop_back();
  }
  work.backward_items = sort_items(parts, backward_begin);
}

void append_work(const BruteSpec& spec, RankPlanParts& parts, const std::vector<Classes>& classes, std::size_t index,
                 std::int64_t query_blocks) {
  const Indices& keys = spec.works[index];
  const auto num_keys = static_cast<std::int64_t>(keys.size());
  Work work;
  work.q = static_cast<std::int32_t>(Tensor::q);
  work.out = static_cast<std::int32_t>(Tensor::out);
  work.lse = static_cast<std::int32_t>(Tensor::lse);
  work.dout = static_cast<std::int32_t>(Tensor::dout);
  work.delta = static_cast<std::int32_t>(Tensor::delta);
  work.key_rows = num_keys + spec.pad_rows;
  for (std::int32_t* buffer : {&work.k, &work.v, &work.dk, &work.dv}) {
    *buffer = static_cast<std::int32_t>(parts.buffers.size());
    const BufferType type = buffer == &work.k || buffer == &work.v ? BufferType::io : BufferType::fp32;
    parts.buffers.push_back({work.key_rows, spec.kv_heads, type, 0, 0});
  }
  work.key_segments.begin = static_cast<std::int64_t>(parts.segments.size());
  SegmentMaker(spec, parts).append(keys, true, parts.segments);
  work.key_segments.end = static_cast<std::int64_t>(parts.segments.size());
  work.key_valid.begin = static_cast<std::int64_t>(parts.key_valid.size());
  for (std::int64_t block = 0; block < blocks_of(work.key_rows, spec.block); ++block)
    parts.key_valid.push_back(static_cast<std::int32_t>(valid_keys(keys, block, spec.block)));
  work.key_valid.end = static_cast<std::int64_t>(parts.key_valid.size());
  append_items(parts, classes, index, query_blocks, work);
  parts.works.push_back(work);
}

}  // namespace

bool has_visible_ranges(const BruteSpec& spec) {
  for (std::int64_t key = 0; key < static_cast<std::int64_t>(spec.tokens.size()); ++key)
    if (!visible_interval(spec, key)) return false;
  return true;
}

RankPlan make_brute_plan(const BruteSpec& spec) {
  RankPlanParts parts;
  RankPlanHeader& header = parts.header;
  header.heads = header.local_heads = static_cast<std::int32_t>(spec.head_map.size());
  header.kv_heads = header.local_kv_heads = spec.kv_heads;
  header.head_dim = spec.head_dim;
  header.block = spec.block;
  header.valid_rows = header.valid_query_rows = static_cast<std::int64_t>(spec.queries.size());
  header.rows = header.query_rows = header.valid_rows + spec.pad_rows;
  header.window = spec.rule.window;
  header.clamp = spec.rule.clamp ? 1 : 0;
  header.uses_tracks = spec.use_tracks ? 1 : 0;
  parts.buffers.resize(kNumTensors, {header.rows, header.heads, BufferType::io, 0, 0});
  parts.head_map = spec.head_map;
  SegmentMaker(spec, parts).append(spec.queries, false, parts.query_segments);

  const std::int64_t query_blocks = blocks_of(header.query_rows, spec.block);
  std::vector<Classes> classes;
  for (const Indices& keys : spec.works)
    classes.push_back(classify(spec, keys, query_blocks,
                               blocks_of(static_cast<std::int64_t>(keys.size()) + spec.pad_rows, spec.block)));
  for (std::size_t index = 0; index < spec.works.size(); ++index)
    append_work(spec, parts, classes, index, query_blocks);
  const RankPlan plan = assemble(parts);
  return RankPlan::from_bytes({plan.bytes().begin(), plan.bytes().end()});  // checks every invariant
}

}  // namespace marble
