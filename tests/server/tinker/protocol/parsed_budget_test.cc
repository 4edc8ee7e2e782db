// SPDX-License-Identifier: Apache-2.0
// What parsing takes counts beside the body: until it is gone, and not beyond what there is.
#include "text/parsed_budget.h"

#include <gmock/gmock.h>

#include "base/busy.h"
#include "server/tinker/protocol/forward_backward.h"
#include "tests/base/accounts.h"
#include "tests/base/temp_dir.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

using strata::testing::accounts_with;
using strata::testing::error_of;
using ::testing::HasSubstr;

std::string zeros(size_t count) {
  std::string out = R"({"model_id":"m","seq_id":1,"a":[0)";
  for (size_t i = 1; i < count; ++i) out += ",0";
  return out + "]}";
}

struct ParsedRoomTest : ::testing::Test {
  ParsedRoomTest() { EXPECT_TRUE(body.hold(Use::kBody, 2 << 20)); }
  Accounts accounts = accounts_with(Use::kBody, 256 << 20, /*num_tenants=*/2);  // 192 MiB for one
  const SharedLimit& bodies = accounts.of(Use::kBody);
  Charge body = accounts.open("a");
};

TEST_F(ParsedRoomTest, JsonCountsWhileItLives) {
  {
    const text::JsonBody json(zeros(1 << 20), "test", &body);
    EXPECT_GT(bodies.used(), (2 << 20) + (16 << 20));
    EXPECT_LT(bodies.used(), (2 << 20) + (32 << 20));  // the parser's own is back
  }
  EXPECT_EQ(bodies.used(), 2 << 20);
}

TEST_F(ParsedRoomTest, SmallJsonCountsNothing) {
  const text::JsonBody json("{\"a\":1}", "test", &body);
  EXPECT_EQ(bodies.used(), 2 << 20);
}

TEST_F(ParsedRoomTest, WithoutRoomNowItIsBusyAndWithoutRoomEverAFault) {
  const std::string text = zeros(1 << 20);
  Charge other = accounts.open("b");
  ASSERT_TRUE(other.hold(Use::kBody, 190 << 20));
  EXPECT_THROW(text::JsonBody(text, "test", &body), Busy);
  other.release_all();
  EXPECT_NO_THROW(text::JsonBody(text, "test", &body));
  Charge alone = accounts_with(Use::kBody, 60 << 20).open("a");
  ASSERT_TRUE(alone.hold(Use::kBody, 2 << 20));
  const std::string fault = error_of([&] { text::JsonBody(text, "test", &alone); });
  EXPECT_THAT(fault, HasSubstr("--max-body-bytes"));
  EXPECT_THAT(fault, HasSubstr("send less at once"));
  EXPECT_EQ(bodies.used(), 2 << 20);
}

// A million empty chunks are two megabytes as they come.
TEST_F(ParsedRoomTest, APassCountsItsPartsBeforeTheyAreParsed) {
  std::string chunks;
  for (int i = 0; i < 600'000; ++i) chunks += std::string_view("\x0a\x00", 2);
  std::string bytes = "\x0a\x01m\x10\x01\x1a";
  for (size_t size = chunks.size(); size > 0; size >>= 7)
    bytes += static_cast<char>(size < 128 ? size : (size & 127) | 128);
  bytes += chunks;
  {
    const ForwardBackwardBody parsed(bytes, DataForm::kBinary, &body);
    EXPECT_GT(bodies.used(), (2 << 20) + (70 << 20));
  }
  EXPECT_EQ(bodies.used(), 2 << 20);
  Charge other = accounts.open("b");
  ASSERT_TRUE(other.hold(Use::kBody, 190 << 20));
  EXPECT_THROW(ForwardBackwardBody(bytes, DataForm::kBinary, &body), Busy);
}

TEST_F(ParsedRoomTest, AJsonPassCountsTwice) {
  const std::string text = zeros(1 << 20);
  const text::JsonBody json(text, "test", &body);
  const int64_t once = bodies.used();
  const ForwardBackwardBody parsed(text, DataForm::kJson, &body);
  EXPECT_GT(bodies.used() - once, once - (2 << 20));
}

}  // namespace
}  // namespace strata::server
