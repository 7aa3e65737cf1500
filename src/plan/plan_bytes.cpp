// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The byte form of a plan: magic, version, fields in declaration order, and a checksum of all before it.

#include "base/fnv.hpp"
#include "plan/plan_stages.hpp"

#include "marble/error.hpp"
#include "marble/plan.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace marble {
namespace {

constexpr std::uint64_t kMagic = 0x4e414c50424d4dULL;
constexpr std::uint32_t kVersion = 4;

class Writer {
 public:
  template <typename T>
  void operator()(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), begin, begin + sizeof(T));
  }
  void operator()(const std::string& text) { (*this)(std::vector<char>(text.begin(), text.end())); }
  template <typename T>
  void operator()(const std::vector<T>& values);

  std::vector<std::byte> bytes;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> source) : rest_(source) {}

  template <typename T>
  void operator()(T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    require(rest_.size() >= sizeof(T), "plan is truncated: {} bytes are missing", sizeof(T) - rest_.size());
    if constexpr (std::is_same_v<T, bool>) {
      value = rest_[0] != std::byte{0};
    } else {
      std::memcpy(&value, rest_.data(), sizeof(T));
    }
    rest_ = rest_.subspan(sizeof(T));
  }
  void operator()(std::string& text) {
    std::vector<char> characters;
    (*this)(characters);
    text.assign(characters.begin(), characters.end());
  }
  template <typename T>
  void operator()(std::vector<T>& values);

  [[nodiscard]] std::size_t remaining() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

template <typename T, typename Target>
concept Is = std::is_same_v<std::remove_const_t<T>, Target>;

// One list of fields serves writer and reader.
template <typename Io, Is<Span> T>
void fields(Io& io, T& span) {
  io(span.mode), io(span.length), io(span.id);
}

template <typename Io, Is<MaskRule> T>
void fields(Io& io, T& rule) {
  io(rule.window), io(rule.clamp);
}

template <typename Io, Is<LayerKind> T>
void fields(Io& io, T& kind) {
  fields(io, kind.rule), io(kind.count);
}

template <typename Io, Is<Hardware> T>
void fields(Io& io, T& hardware) {
  io(hardware.name), io(hardware.forward_full_gflops), io(hardware.forward_partial_gflops),
      io(hardware.backward_full_gflops), io(hardware.backward_partial_gflops), io(hardware.node_mbytes_per_s),
      io(hardware.network_mbytes_per_s), io(hardware.memory_mbytes_per_s), io(hardware.step_ns),
      io(hardware.exchange_ns), io(hardware.range_ns), io(hardware.multiprocessors), io(hardware.memory_bytes);
}

template <typename Io, Is<Piece> T>
void fields(Io& io, T& piece) {
  io(piece.canonical), io(piece.length), io(piece.row), io(piece.ring_rank);
}

template <typename Io, Is<PairDemand> T>
void fields(Io& io, T& demand) {
  io(demand.full_tiles), io(demand.partial_tiles), io(demand.needed_rows), io(demand.needed_blocks), io(demand.slice);
}

template <typename Io, Is<LayerPlan> T>
void fields(Io& io, T& layer) {
  fields(io, layer.kind), io(layer.strategy), io(layer.uses_tracks), io(layer.demand), io(layer.num_slices),
      io(layer.slot_rows);
}

template <typename Io, Is<Plan> T>
void fields(Io& io, T& plan) {
  io(plan.layout.spans), io(plan.layout.sample_begin);
  io(plan.model.heads), io(plan.model.kv_heads), io(plan.model.head_dim), io(plan.model.layers),
      io(plan.model.order_dependent);
  io(plan.mesh.ring), io(plan.mesh.ulysses), io(plan.mesh.ranks_per_node);
  fields(io, plan.hardware);
  io(plan.block), io(plan.canonical), io(plan.placement), io(plan.keep), io(plan.pieces), io(plan.rows),
      io(plan.ring_tokens), io(plan.layers);
}

template <typename T>
void Writer::operator()(const std::vector<T>& values) {
  (*this)(static_cast<std::uint64_t>(values.size()));
  for (const T& value : values)
    if constexpr (std::is_arithmetic_v<T>)
      (*this)(value);
    else
      fields(*this, value);
}

template <typename T>
void Reader::operator()(std::vector<T>& values) {
  std::uint64_t size = 0;
  (*this)(size);
  require(size <= rest_.size(), "plan is altered: a list of {} entries in {} bytes", size, rest_.size());
  values.resize(size);
  for (T& value : values)
    if constexpr (std::is_arithmetic_v<T>)
      (*this)(value);
    else
      fields(*this, value);
}

void check_consistent(const Plan& plan) {
  validate(plan.layout);
  validate(plan.hardware);
  const auto ring = static_cast<std::size_t>(plan.mesh.ring);
  require(plan.mesh.ring >= 1 && plan.mesh.ulysses >= 1 && plan.block >= 1 && plan.ring_tokens.size() == ring,
          "plan is altered: mesh {} x {}, block {}, tokens of {} ring ranks", plan.mesh.ring, plan.mesh.ulysses,
          plan.block, plan.ring_tokens.size());
  std::int64_t next = 0;
  for (const Piece& piece : plan.pieces) {
    require(piece.canonical == next && piece.length > 0 && piece.ring_rank >= 0 && piece.ring_rank < plan.mesh.ring,
            "plan is altered: piece at {} of {} tokens on ring rank {}", piece.canonical, piece.length,
            piece.ring_rank);
    next += piece.length;
  }
  require(next == plan.layout.num_tokens(), "plan is altered: its pieces hold {} of {} tokens", next,
          plan.layout.num_tokens());
  for (const LayerPlan& layer : plan.layers) {
    require(layer.demand.size() == ring * ring, "plan is altered: demand of {} rank pairs", layer.demand.size());
    std::int32_t last = 0;
    for (const PairDemand& demand : layer.demand) {
      require(demand.slice >= 0, "plan is altered: slice {}", demand.slice);
      last = std::max(last, demand.slice);
    }
    require(layer.num_slices == last, "plan is altered: {} slices, of which the last is {}", layer.num_slices, last);
  }
}

}  // namespace

std::vector<std::byte> to_bytes(const Plan& plan) {
  Writer writer;
  writer(kMagic);
  writer(kVersion);
  fields(writer, plan);
  writer(fnv1a_words(kFnvOffset, writer.bytes));
  return std::move(writer.bytes);
}

std::uint64_t ending_checksum(std::span<const std::byte> plan_bytes) {
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, plan_bytes.data() + plan_bytes.size() - sizeof(checksum), sizeof(checksum));
  return checksum;
}

Plan plan_from_bytes(std::span<const std::byte> bytes) {
  std::uint64_t magic = 0, checksum = 0;
  std::uint32_t version = 0;
  require(bytes.size() > sizeof(checksum), "plan is truncated: it has {} bytes", bytes.size());
  const std::span<const std::byte> body = bytes.first(bytes.size() - sizeof(checksum));
  Reader reader(body), tail(bytes.subspan(body.size()));
  reader(magic);
  require(magic == kMagic, "not a plan: magic {:#x}", magic);
  reader(version);
  require(version == kVersion, "plan version {} is not the supported version {}", version, kVersion);
  tail(checksum);
  require(checksum == fnv1a_words(kFnvOffset, body), "plan was truncated or altered: its checksum does not match");
  Plan plan;
  fields(reader, plan);
  require(reader.remaining() == 0, "plan is altered: {} bytes are left over", reader.remaining());
  check_consistent(plan);
  plan.digest = checksum;
  return plan;
}

void check_plan_for(const Plan& plan, const Layout& layout) {
  require(plan.layout == layout, "the plan is for another layout: digest {:#x}, not {:#x}", digest(plan.layout),
          digest(layout));
}

}  // namespace marble
