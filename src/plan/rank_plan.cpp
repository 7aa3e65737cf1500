// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/rank_plan.hpp"

#include "base/fnv.hpp"
#include "plan/rank_plan_parts.hpp"

#include "marble/error.hpp"

#include <cstring>

namespace marble {
namespace {

// Section numbers, in buffer order. A section's entry type stands once, in SectionType.
enum SectionIndex {
  kBuffers,
  kHeadMap,
  kQuerySegments,
  kSegments,
  kRules,
  kForwardSteps,
  kBackwardSteps,
  kWorks,
  kItems,
  kRuns,
  kKeyValid,
  kExchanges,
  kTransfers,
  kFinishes,
};
constexpr std::uint64_t kAlignment = 16;

constexpr std::uint64_t align_up(std::uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

/// Calls fn(index, member) for every section of `parts`.
template <typename Parts, typename Fn>
void for_each_section(Parts& parts, Fn&& fn) {
  fn(kBuffers, parts.buffers);
  fn(kHeadMap, parts.head_map);
  fn(kQuerySegments, parts.query_segments);
  fn(kSegments, parts.segments);
  fn(kRules, parts.rules);
  fn(kForwardSteps, parts.forward_steps);
  fn(kBackwardSteps, parts.backward_steps);
  fn(kWorks, parts.works);
  fn(kItems, parts.items);
  fn(kRuns, parts.runs);
  fn(kKeyValid, parts.key_valid);
  fn(kExchanges, parts.exchanges);
  fn(kTransfers, parts.transfers);
  fn(kFinishes, parts.finishes);
}

template <typename T>
std::span<const T> section(const RankPlan& plan, int index) {
  const auto& entry = plan.header().sections[index];
  return {reinterpret_cast<const T*>(plan.bytes().data() + entry.offset), entry.count};
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return fnv1a_words(kFnvOffset, bytes.subspan(sizeof(RankPlanHeader)));
}

void check_frame(std::span<const std::byte> bytes) {
  require(bytes.size() >= sizeof(RankPlanHeader), "rank plan has {} bytes, fewer than its header", bytes.size());
  RankPlanHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  require(header.magic == RankPlanHeader::kMagic, "not a rank plan: magic {:#x}", header.magic);
  require(header.version == RankPlanHeader::kVersion, "rank plan version {} is not the supported version {}",
          header.version, RankPlanHeader::kVersion);
  require(header.bytes == bytes.size(), "rank plan holds {} bytes, its header says {}", bytes.size(), header.bytes);
  require(header.checksum == checksum(bytes), "rank plan was altered: its checksum does not match");
  RankPlanParts entry_types;
  for_each_section(entry_types, [&](int index, auto& entries) {
    const auto& entry = header.sections[index];
    const std::uint64_t size = sizeof(entries[0]);
    require(entry.offset % kAlignment == 0 && entry.offset >= sizeof(header) && entry.offset <= bytes.size() &&
                entry.count <= (bytes.size() - entry.offset) / size,
            "rank plan section {} ({} entries at byte {}) leaves the plan of {} bytes", index, entry.count,
            entry.offset, bytes.size());
  });
}

void check_range(const SectionRange& range, std::size_t size, const char* what) {
  require(range.begin >= 0 && range.begin <= range.end && range.end <= static_cast<std::int64_t>(size),
          "rank plan range [{}, {}) leaves its {} {}", range.begin, range.end, size, what);
}

void check_index(std::int64_t index, std::size_t size, const char* what) {
  require(index >= 0 && index < static_cast<std::int64_t>(size), "rank plan index {} leaves its {} {}", index, size,
          what);
}

void check_steps(const RankPlan& plan, std::span<const Step> steps) {
  for (const Step& step : steps) {
    if (step.fetch >= 0) check_index(step.fetch, plan.exchanges().size(), "exchanges");
    if (step.give_back >= 0) check_index(step.give_back, plan.exchanges().size(), "exchanges");
    if (step.work >= 0) check_index(step.work, plan.works().size(), "works");
    check_range(step.finishes, plan.finishes().size(), "finishes");
  }
}

void check_transfers(const RankPlan& plan) {
  for (const Exchange& exchange : plan.exchanges()) {
    check_range(exchange.sends, plan.transfers().size(), "transfers");
    check_range(exchange.recvs, plan.transfers().size(), "transfers");
  }
  for (const Transfer& transfer : plan.transfers()) {
    check_index(transfer.peer, static_cast<std::size_t>(plan.header().num_ranks), "ranks");
    check_index(transfer.buffer, plan.buffers().size(), "buffers");
    const BufferDesc& buffer = plan.buffers()[static_cast<std::size_t>(transfer.buffer)];
    require(transfer.row >= 0 && transfer.rows >= 0 && transfer.row + transfer.rows <= buffer.rows &&
                transfer.head >= 0 && transfer.heads >= 0 && transfer.head + transfer.heads <= buffer.heads,
            "rank plan transfer of rows [{}, +{}) heads [{}, +{}) leaves buffer {}", transfer.row, transfer.rows,
            transfer.head, transfer.heads, transfer.buffer);
  }
}

void check_segments(const RankPlan& plan, std::span<const Segment> segments, std::int64_t rows) {
  std::int64_t row = 0;
  for (const Segment& segment : segments) {
    require(segment.row >= row && segment.length > 0 && segment.row + segment.length <= rows,
            "rank plan segment of rows [{}, +{}) is out of order or leaves its {} rows", segment.row, segment.length,
            rows);
    if (segment.rule >= 0) check_index(segment.rule, plan.rules().size(), "rules");
    row = segment.row + segment.length;
  }
}

void check_items(const RankPlan& plan, const SectionRange& range, std::int64_t blocks, std::int64_t run_blocks) {
  check_range(range, plan.items().size(), "items");
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const Item& item = plan.items()[static_cast<std::size_t>(i)];
    check_index(item.block, static_cast<std::size_t>(blocks), "blocks");
    check_range({item.run_begin, item.run_begin + item.run_count}, plan.runs().size(), "runs");
    for (std::int64_t r = item.run_begin; r < item.run_begin + item.run_count; ++r) {
      const Run& run = plan.runs()[static_cast<std::size_t>(r)];
      require(run.begin >= 0 && run.begin < run.end && run.end <= run_blocks,
              "rank plan run of blocks [{}, {}) leaves its {} blocks", run.begin, run.end, run_blocks);
    }
  }
}

void check_works(const RankPlan& plan) {
  const RankPlanHeader& header = plan.header();
  const auto blocks_of = [&](std::int64_t rows) { return (rows + header.block - 1) / header.block; };
  for (const Work& work : plan.works()) {
    for (std::int32_t buffer : {work.q, work.k, work.v, work.out, work.lse, work.dout, work.delta, work.dk, work.dv})
      check_index(buffer, plan.buffers().size(), "buffers");
    require(work.key_rows >= 0 && work.key_rows <= plan.buffers()[static_cast<std::size_t>(work.k)].rows,
            "rank plan work uses {} key rows, more than its buffer holds", work.key_rows);
    check_range(work.key_segments, plan.segments().size(), "segments");
    check_segments(plan,
                   plan.segments().subspan(static_cast<std::size_t>(work.key_segments.begin),
                                           static_cast<std::size_t>(work.key_segments.size())),
                   work.key_rows);
    check_range(work.key_valid, plan.key_valid().size(), "key block extents");
    require(work.key_valid.size() == blocks_of(work.key_rows), "rank plan work states {} key block extents for {} rows",
            work.key_valid.size(), work.key_rows);
    check_items(plan, work.forward_items, blocks_of(header.query_rows), blocks_of(work.key_rows));
    check_items(plan, work.backward_items, blocks_of(work.key_rows), blocks_of(header.query_rows));
  }
}

void check_header(const RankPlan& plan) {
  const RankPlanHeader& header = plan.header();
  require(header.num_ranks >= 1 && header.rank >= 0 && header.rank < header.num_ranks, "rank plan is for rank {} of {}",
          header.rank, header.num_ranks);
  require(header.block >= 1 && header.rows >= header.valid_rows && header.valid_rows >= 0 &&
              header.query_rows >= header.valid_query_rows && header.valid_query_rows >= 0,
          "rank plan states {} of {} rows and {} of {} query rows", header.valid_rows, header.rows,
          header.valid_query_rows, header.query_rows);
  require(plan.buffers().size() >= kNumTensors, "rank plan names {} buffers, fewer than the {} tensors",
          plan.buffers().size(), kNumTensors);
  require(plan.head_map().size() == static_cast<std::size_t>(header.local_heads),
          "rank plan maps {} heads, not its {} local heads", plan.head_map().size(), header.local_heads);
  for (std::int32_t head : plan.head_map())
    check_index(head, static_cast<std::size_t>(header.local_kv_heads), "key heads");
}

}  // namespace

RankPlan assemble(const RankPlanParts& parts) {
  RankPlanHeader header = parts.header;
  std::uint64_t offset = align_up(sizeof(RankPlanHeader));
  for_each_section(parts, [&](int index, const auto& entries) {
    header.sections[index] = {offset, entries.size()};
    offset = align_up(offset + entries.size() * sizeof(entries[0]));
  });
  header.bytes = offset;
  std::vector<std::byte> bytes(offset);
  for_each_section(parts, [&](int index, const auto& entries) {
    if (!entries.empty())
      std::memcpy(bytes.data() + header.sections[index].offset, entries.data(), entries.size() * sizeof(entries[0]));
  });
  header.checksum = checksum(bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return RankPlan::from_assembled(std::move(bytes));
}

RankPlanParts parts_of(const RankPlan& plan) {
  RankPlanParts parts;
  parts.header = plan.header();
  for_each_section(parts, [&](int index, auto& entries) {
    const auto found = section<std::decay_t<decltype(entries[0])>>(plan, index);
    entries.assign(found.begin(), found.end());
  });
  return parts;
}

RankPlan RankPlan::from_bytes(std::vector<std::byte> bytes) {
  check_frame(bytes);
  RankPlan plan;
  plan.bytes_ = std::move(bytes);
  check_header(plan);
  check_segments(plan, plan.query_segments(), plan.header().query_rows);
  check_steps(plan, plan.forward_steps());
  check_steps(plan, plan.backward_steps());
  check_transfers(plan);
  check_works(plan);
  for (const Finish& finish : plan.finishes()) {
    if (finish.source != Finish::kDQ) check_index(finish.source, plan.buffers().size(), "buffers");
    check_index(finish.target, plan.buffers().size(), "buffers");
  }
  return plan;
}

RankPlan RankPlan::from_assembled(std::vector<std::byte> bytes) {
  RankPlan plan;
  plan.bytes_ = std::move(bytes);
  return plan;
}

const RankPlanHeader& RankPlan::header() const {
  return *reinterpret_cast<const RankPlanHeader*>(bytes_.data());
}
std::span<const BufferDesc> RankPlan::buffers() const {
  return section<BufferDesc>(*this, kBuffers);
}
std::span<const std::int32_t> RankPlan::head_map() const {
  return section<std::int32_t>(*this, kHeadMap);
}
std::span<const Segment> RankPlan::query_segments() const {
  return section<Segment>(*this, kQuerySegments);
}
std::span<const Segment> RankPlan::segments() const {
  return section<Segment>(*this, kSegments);
}
std::span<const VisibleRule> RankPlan::rules() const {
  return section<VisibleRule>(*this, kRules);
}
std::span<const Step> RankPlan::forward_steps() const {
  return section<Step>(*this, kForwardSteps);
}
std::span<const Step> RankPlan::backward_steps() const {
  return section<Step>(*this, kBackwardSteps);
}
std::span<const Work> RankPlan::works() const {
  return section<Work>(*this, kWorks);
}
std::span<const Item> RankPlan::items() const {
  return section<Item>(*this, kItems);
}
std::span<const Run> RankPlan::runs() const {
  return section<Run>(*this, kRuns);
}
std::span<const std::int32_t> RankPlan::key_valid() const {
  return section<std::int32_t>(*this, kKeyValid);
}
std::span<const Exchange> RankPlan::exchanges() const {
  return section<Exchange>(*this, kExchanges);
}
std::span<const Transfer> RankPlan::transfers() const {
  return section<Transfer>(*this, kTransfers);
}
std::span<const Finish> RankPlan::finishes() const {
  return section<Finish>(*this, kFinishes);
}

}  // namespace marble
