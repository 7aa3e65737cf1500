// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One exchange, seen from one rank. The messages to one peer, and those from one, are a parcel; parcels between two
// ranks are counted alike on both sides. A receiver posts what it expects and where; the sender compares before
// anything moves.

#include "transport/nccl/device.hpp"

#include "marble/transport.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace marble::nccl {

/// Where the messages of a parcel lie. Host bytes travel through sockets, device bytes by the courier.
enum class Place : std::int32_t { device, host };

/// What a receiver expects: bytes of each message, and where in its region they belong (if it has one).
struct Post {
  Place place = Place::device;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> offsets;
};

struct Parcel {
  std::int32_t peer = 0;
  Word sequence = 0;  // from 1
  Place place = Place::device;
  std::vector<Message> messages;

  [[nodiscard]] std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> list;
    for (const Message& message : messages) list.push_back(message.bytes);
    return list;
  }
};

struct Outgoing : Parcel {
  std::string bytes = {};         // of a host parcel
  std::optional<Post> post = {};  // the receiver's, once it has come and fits
  bool is_started = false;        // asked for on the side queue, or handed to the socket
};

struct Incoming : Parcel {
  std::vector<std::int64_t> offsets = {};  // into this rank's region
  std::optional<std::string> bytes = {};   // of a host parcel, once it has come
  bool is_announced = false;               // of a device parcel: its sender has found that sizes agree
};

/// A receive that arrives in staging memory, and is copied from there in the compute stream.
struct Staged {
  Message target;
  void* source = nullptr;
};

struct Exchange {
  Word number = 0;  // counts exchanges with messages to or from others, from 1
  std::string label = {};
  std::vector<Outgoing> sends = {};
  std::vector<Incoming> recvs = {};
  std::vector<Staged> staged = {};
  std::unique_ptr<Mark> begun = {};  // in the compute stream
  std::unique_ptr<Mark> done = {};   // in the side queue, of couriers that tell by marks instead of words
  bool is_credited = false;          // by couriers that ask for credits themselves
  // Guarded by the engine's lock: whether all device parcels are started, and the peer of the first that is not.
  bool is_started = false;
  std::int32_t awaited = -1;
};

}  // namespace marble::nccl
