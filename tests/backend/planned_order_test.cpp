// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The planned order of gradient sums, by simulation of the backward kernels' schedule on random work arrays: whatever
// the number of CTAs and their pace, everyone gets a turn, and every sum has the same order.

#include "backend/cuda/planned_order.hpp"

#include "backend/cuda/backward_order.hpp"
#include "backend/cuda/backward_walk.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <utility>

namespace marble::cuda {
namespace {

using Generator = std::mt19937;

int draw(Generator& generator, int low, int high) {
  return std::uniform_int_distribution(low, high)(generator);
}

/// A launch of a backward kernel on arrays of the host.
struct Launch {
  std::vector<Item> items;
  std::vector<Run> runs;
  std::vector<std::int32_t> group_begin{0}, group_heads;
  PlannedRanks planned;
  std::vector<std::int32_t> by_length;  // instead of a planned order
  int key_tiles = 1;
  BackwardParams params;
};

void add_random_item(Generator& generator, int key_block, int num_blocks, Launch& launch) {
  Item item;
  item.block = key_block;
  item.run_begin = static_cast<std::int64_t>(launch.runs.size());
  for (int block = draw(generator, 0, 3); block < num_blocks;) {
    const int end = std::min(num_blocks, block + draw(generator, 1, 4));
    launch.runs.push_back({block, end, draw(generator, 0, 1) == 0 ? BlockClass::partial : BlockClass::full});
    item.tiles += end - block;
    block = end + draw(generator, 0, 3);
  }
  item.run_count = static_cast<std::int32_t>(static_cast<std::int64_t>(launch.runs.size()) - item.run_begin);
  if (item.tiles > 0) launch.items.push_back(item);
}

/// Items in the order of their units, or in any other; the last key block may have pads.
Launch random_launch(unsigned seed) {
  Generator generator(seed);
  Launch launch;
  BackwardParams& params = launch.params;
  params.num_blocks = draw(generator, 1, 12);
  const int key_blocks = draw(generator, 1, 10);
  for (int block = 0; block < key_blocks; ++block) add_random_item(generator, block, params.num_blocks, launch);
  params.path = {draw(generator, 0, 1) == 0, draw(generator, 0, 1) == 0};
  if (draw(generator, 0, 1) == 0)
    launch.items = in_order_of_paths(launch.items, launch.runs, params.path);
  else
    std::shuffle(launch.items.begin(), launch.items.end(), generator);
  params.num_kv_heads = seed % 4 == 0 ? draw(generator, 9, 17) : draw(generator, 1, 3);  // several groups of heads
  for (int key_head = 0; key_head < params.num_kv_heads; ++key_head) {
    for (int i = draw(generator, 0, 3); i > 0; --i)
      launch.group_heads.push_back(static_cast<std::int32_t>(launch.group_heads.size()));
    launch.group_begin.push_back(static_cast<std::int32_t>(launch.group_heads.size()));
  }
  launch.key_tiles = 1 << draw(generator, 0, 3);  // of the Hopper kernels, and of the plain one
  params.num_items = static_cast<std::int32_t>(launch.items.size());
  params.head_splits = draw(generator, 1, 4);  // fewer than a group's heads, or more
  params.block_splits = draw(generator, 1, 3);
  params.heads_together = draw(generator, 1, 8);
  params.valid_key_rows = key_blocks * kBlock - draw(generator, 0, kBlock - 1);
  params.num_units =
      params.num_kv_heads * params.num_items * launch.key_tiles * params.head_splits * params.block_splits;
  launch.planned = planned_ranks(launch.items, launch.runs, params.num_blocks);
  return launch;
}

/// One wait of a unit for a counter, and what it leaves there.
struct Step {
  int counter;
  Turn turn;
};

constexpr int kKeyCounters = 1 << 20;  // counters of dK and dV come after those of dQ

BackwardParams params_of(const Launch& launch) {
  BackwardParams params = launch.params;
  params.items = launch.items.data();
  params.runs = launch.runs.data();
  params.group_begin = launch.group_begin.data();
  params.group_heads = launch.group_heads.data();
  if (launch.by_length.empty()) {
    params.order.ranks = launch.planned.ranks.data();
    params.order.item_begin = launch.planned.item_begin.data();
  } else {
    params.by_length = launch.by_length.data();
  }
  order_units(params, launch.key_tiles);
  return params;
}

/// What unit `index` waits for, in its own order: its query tiles, then its turn among the splits of its item.
std::deque<Step> steps_of(const Launch& launch, int index) {
  const BackwardParams params = params_of(launch);
  const BackwardUnit unit = backward_unit_at(params, launch.key_tiles, index);
  GroupWalk walk;
  walk.start(params, unit);
  const int tile_keys = kBlock / launch.key_tiles;
  const int key_row = walk.key_block() * kBlock + unit.key_tile * tile_keys;
  std::deque<Step> steps;
  if (walk.remaining() == 0 || key_row >= params.valid_key_rows) return steps;
  const bool is_last = unit.key_tile == launch.key_tiles - 1 || key_row + tile_keys >= params.valid_key_rows;
  while (walk.remaining() > 0) {
    const GroupWalk::Block block = walk.next(params);
    steps.push_back({block.head * params.num_blocks + block.index,
                     planned_turn(block.rank, unit.key_tile, launch.key_tiles, is_last)});
  }
  steps.push_back({kKeyCounters + key_tile_of(params, launch.key_tiles, unit), {walk.turn(), walk.turn() + 1}});
  return steps;
}

using Sums = std::map<int, std::vector<int>>;  // by counter, the units that added, in order

/// Runs the launch on `num_ctas` CTAs that take steps in random order and draw units up to `ahead` before they need
/// them. `nth` maps the n-th unit drawn to a unit. False when nobody can move any more.
template <typename Nth>
bool simulate(const Launch& launch, int num_ctas, int ahead, unsigned seed, Nth&& nth, Sums& sums) {
  struct Drawn {
    int unit;
    std::deque<Step> steps;
  };
  Generator generator(seed);
  std::vector<std::deque<Drawn>> ctas(static_cast<std::size_t>(num_ctas));
  std::vector<int> order(ctas.size());
  std::iota(order.begin(), order.end(), 0);
  std::map<int, int> counters;
  int drawn = 0;
  for (;;) {
    std::shuffle(order.begin(), order.end(), generator);
    bool moved = false;
    for (const int cta : order) {
      auto& queue = ctas[static_cast<std::size_t>(cta)];
      if (static_cast<int>(queue.size()) <= ahead && drawn < launch.params.num_units) {
        const int unit = nth(drawn++);
        queue.push_back({unit, steps_of(launch, unit)});
        moved = true;
      }
      if (queue.empty()) continue;
      auto& [unit, steps] = queue.front();
      for (int pace = draw(generator, 0, 5); pace > 0 && !steps.empty(); --pace) {
        const Step step = steps.front();
        if (counters[step.counter] != step.turn.begin) break;
        counters[step.counter] = step.turn.end;
        sums[step.counter].push_back(unit);
        steps.pop_front();
        moved = true;
      }
      if (steps.empty()) {
        queue.pop_front();
        moved = true;
      }
    }
    const bool is_done = drawn == launch.params.num_units &&
                         std::all_of(ctas.begin(), ctas.end(), [](const auto& queue) { return queue.empty(); });
    if (is_done) return true;
    // A round in which everyone paused proves nothing: only a blocked front step does.
    const auto is_blocked = [&](const auto& queue) {
      return !queue.empty() && counters[queue.front().steps.front().counter] != queue.front().steps.front().turn.begin;
    };
    if (!moved && std::all_of(ctas.begin(), ctas.end(), [&](const auto& q) { return q.empty() || is_blocked(q); }))
      return false;
  }
}

TEST(PlannedOrder, EveryoneGetsATurnAndSumsKeepTheirOrder) {
  const auto in_order = [](int n) { return n; };
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Launch launch = random_launch(seed);
    Sums expected;
    ASSERT_TRUE(simulate(launch, 1, 0, seed, in_order, expected)) << "seed " << seed << ", one CTA";
    for (const auto& [counter, units] : expected)
      ASSERT_TRUE(std::is_sorted(units.begin(), units.end())) << "seed " << seed << ", counter " << counter;
    for (const int num_ctas : {2, 3, 7, 40}) {
      Sums sums;
      const int ahead = static_cast<int>(seed % 3);
      ASSERT_TRUE(simulate(launch, num_ctas, ahead, seed + 1000, in_order, sums))
          << "seed " << seed << ", " << num_ctas;
      ASSERT_EQ(sums, expected) << "seed " << seed << ", " << num_ctas << " CTAs";
    }
  }
}

TEST(PlannedOrder, EveryVisibleTileIsMetOnce) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Launch launch = random_launch(seed);
    if (seed % 2 == 1) {
      launch.by_length.resize(launch.items.size());
      std::iota(launch.by_length.rbegin(), launch.by_length.rend(), 0);
    }
    std::map<int, int> met, expected;
    for (int unit = 0; unit < launch.params.num_units; ++unit)
      for (const Step& step : steps_of(launch, unit))
        if (step.counter < kKeyCounters) ++met[step.counter];
    for (const Item& item : launch.items) {
      const int keys = std::min(launch.params.valid_key_rows - item.block * kBlock, kBlock);
      const int tile_keys = kBlock / launch.key_tiles;
      for (std::int64_t r = item.run_begin; r < item.run_begin + item.run_count; ++r)
        for (int block = launch.runs[static_cast<std::size_t>(r)].begin;
             block < launch.runs[static_cast<std::size_t>(r)].end; ++block)
          for (const std::int32_t head : launch.group_heads)
            expected[head * launch.params.num_blocks + block] += (keys + tile_keys - 1) / tile_keys;
    }
    ASSERT_EQ(met, expected) << "seed " << seed;
  }
}

/// Key blocks in the order of items that see one run of query blocks each.
std::vector<std::int32_t> ordered_blocks(const std::vector<std::pair<std::int32_t, std::int32_t>>& seen,
                                         QueryPath path) {
  std::vector<Item> items;
  std::vector<Run> runs;
  for (const auto& [begin, end] : seen) {
    const auto block = static_cast<std::int32_t>(items.size());
    items.push_back({block, 0, static_cast<std::int64_t>(runs.size()), 1, end - begin});
    runs.push_back({begin, end, BlockClass::full});
  }
  std::ranges::stable_sort(items, std::greater{}, &Item::tiles);  // as a planner leaves them
  std::vector<std::int32_t> blocks;
  for (const Item& item : in_order_of_paths(items, runs, path)) blocks.push_back(item.block);
  return blocks;
}

TEST(BackwardWalk, StaysInARunFromBlockToBlockAndFromHeadToHead) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Launch launch = random_launch(seed);
    const BackwardParams params = params_of(launch);
    for (int index = 0; index < params.num_units; ++index) {
      const BackwardUnit unit = backward_unit_at(params, launch.key_tiles, index);
      const std::int64_t first_run = launch.items[static_cast<std::size_t>(unit.item)].run_begin;
      const auto run_of = [&](int block) {
        auto run = launch.runs.begin() + first_run;
        while (block >= run->end) ++run;
        return run;
      };
      GroupWalk walk;
      walk.start(params, unit);
      while (walk.remaining() > 0) {
        const GroupWalk::Block block = walk.next(params);
        const bool stays = walk.stays_in_run(params);
        GroupWalk ahead = walk;
        if (ahead.remaining() == 0) {
          EXPECT_FALSE(stays);
          break;
        }
        const GroupWalk::Block next = ahead.next(params);
        EXPECT_EQ(stays,
                  run_of(block.index) == run_of(next.index) && (params.path.heads_inside || block.head == next.head));
      }
    }
  }
}

TEST(BackwardWalk, SaysWhichHeadsMeetABlockInARow) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Launch launch = random_launch(seed);
    const BackwardParams params = params_of(launch);
    for (int index = 0; index < params.num_units; ++index) {
      GroupWalk walk;
      walk.start(params, backward_unit_at(params, launch.key_tiles, index));
      bool is_between = true;
      for (int last = -1; walk.remaining() > 0;) {
        const GroupWalk::Block block = walk.next(params);
        EXPECT_EQ(block.is_first_head, is_between);
        EXPECT_EQ(block.is_first_head, !params.path.heads_inside || block.index != last);
        is_between = block.is_last_head;
        last = block.index;
      }
      EXPECT_TRUE(is_between);
    }
  }
}

TEST(BackwardOrder, SweepsDocumentsFromTheirEndsWithNoiseAhead) {
  // A document of blocks 0 to 4 whose keys 1 and 2 are noise, and one of blocks 5 and 6.
  EXPECT_EQ(ordered_blocks({{0, 5}, {1, 3}, {1, 3}, {3, 5}, {4, 5}, {5, 7}, {6, 7}}, {}),
            (std::vector<std::int32_t>{1, 2, 0, 3, 4, 5, 6}));
}

TEST(BackwardOrder, SweepsSpansInAWindowFromTheirBeginnings) {
  EXPECT_EQ(ordered_blocks({{0, 2}, {0, 3}, {0, 4}, {3, 5}, {3, 6}, {3, 7}}, {.ascends = true}),
            (std::vector<std::int32_t>{5, 4, 3, 2, 1, 0}));
}

TEST(BackwardOrder, ChoosesThePathByWhatNeighboursShare) {
  const auto sample = [](std::int64_t text, std::int64_t span) {
    return std::vector<Segment>{{.length = text}, {.row = text, .length = span, .position = text, .segment = 0}};
  };
  const QueryPath text = query_path(64, sample(900, 100));
  EXPECT_FALSE(text.ascends);
  EXPECT_FALSE(text.heads_inside);
  const QueryPath spans = query_path(64, sample(100, 900));
  EXPECT_TRUE(spans.ascends);
  EXPECT_TRUE(spans.heads_inside);
  for (const std::int64_t window : {0, 600}) {  // none, and one that cuts the fewer rows
    const QueryPath documents = query_path(window, sample(100, 900));
    EXPECT_FALSE(documents.ascends) << window;
    EXPECT_TRUE(documents.heads_inside) << window;
  }
}

/// The control: turns that are not planned from the order in which units are drawn do block.
TEST(PlannedOrder, AnotherOrderOfUnitsBlocks) {
  int blocked = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Launch launch = random_launch(seed);
    Sums sums;
    const auto reversed = [&](int n) { return launch.params.num_units - 1 - n; };
    if (!simulate(launch, 2, 0, seed, reversed, sums)) ++blocked;
  }
  EXPECT_GT(blocked, 25);
}

}  // namespace
}  // namespace marble::cuda
