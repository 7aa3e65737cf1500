// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace marble {
namespace {

template <typename Exception, typename Fn>
std::string message_of(Fn&& fn) {
  try {
    fn();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Errors, RequireThrowsInvalidArgumentWithTheFormattedMessage) {
  EXPECT_EQ(message_of<InvalidArgument>([] { require(false, "heads {} is not a multiple of kv_heads {}", 7, 2); }),
            "heads 7 is not a multiple of kv_heads 2");
}

TEST(Errors, EnsureThrowsInternalErrorWithTheFormattedMessage) {
  EXPECT_EQ(message_of<InternalError>([] { ensure(false, "run {} leaves block {}", 3, "b"); }), "run 3 leaves block b");
}

TEST(Errors, ConditionsThatHoldThrowNothing) {
  EXPECT_NO_THROW(require(true, "never"));
  EXPECT_NO_THROW(ensure(true, "never {}", 1));
}

TEST(Errors, EveryKindIsAnErrorAndNoKindIsAnother) {
  EXPECT_THROW(throw InvalidArgument("a"), Error);
  EXPECT_THROW(throw TransportError("b"), Error);
  EXPECT_THROW(throw BackendError("c"), Error);
  EXPECT_THROW(throw InternalError("d"), Error);
  static_assert(std::is_base_of_v<std::runtime_error, Error>);
  static_assert(!std::is_base_of_v<InvalidArgument, TransportError>);
  static_assert(!std::is_base_of_v<InvalidArgument, InternalError>);
}

}  // namespace
}  // namespace marble
