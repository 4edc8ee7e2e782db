// SPDX-License-Identifier: Apache-2.0
// What is quoted is JSON whatever the bytes: error replies repeat parts of requests.
#include "text/json_body.h"

#include <gtest/gtest.h>

#include "server/http/message.h"

namespace strata::server {
namespace {

std::string quoted_and_read(std::string_view text) {
  const text::JsonBody body("{\"a\":" + json_quoted(text) + "}", "test");
  return body.root().string("a");
}

TEST(JsonQuoted, KeepsValidText) {
  for (const std::string text : {"", "plain", "\"\\\n\t\x01", "\xc3\xa9 \xf0\x9f\x98\x80"}) {
    EXPECT_EQ(quoted_and_read(text), text);
  }
}

TEST(JsonQuoted, ReplacesBytesThatAreNoUtf8) {
  EXPECT_EQ(quoted_and_read("a\xff"), "a\xef\xbf\xbd");
  EXPECT_EQ(quoted_and_read("cut \xf0\x9f\x98"), "cut \xef\xbf\xbd");
  EXPECT_EQ(quoted_and_read("\xed\xa0\x80x").back(), 'x');  // a surrogate
}

}  // namespace
}  // namespace strata::server
