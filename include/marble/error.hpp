// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every failure leaves the library as one of these exceptions; nothing prints, exits or aborts.
// InvalidArgument: the caller's value is wrong; nothing was started, and a corrected call works.
// TransportError:  a peer failed, stalled or disagrees; discard the transport and make a new one.
// BackendError:    the device refused or failed; the message carries the device's own words.
// InternalError:   a bug in this library.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace marble {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InvalidArgument : public Error {
 public:
  using Error::Error;
};

class TransportError : public Error {
 public:
  using Error::Error;
};

class BackendError : public Error {
 public:
  using Error::Error;
};

class InternalError : public Error {
 public:
  using Error::Error;
};

/// Throws InvalidArgument with the formatted message unless `condition` holds. Messages are one line and name the
/// thing, its value and what would be accepted: "heads 7 is not a multiple of kv_heads 2".
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) throw InvalidArgument(fmt::format(message, std::forward<Args>(args)...));
}

/// Throws InternalError with the formatted message unless `condition` holds: for facts only our own bug can break.
template <typename... Args>
void ensure(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) throw InternalError(fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace marble
