// SPDX-License-Identifier: Apache-2.0
#include "text/json_field.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>

#include "base/rng.h"
#include "tests/base/temp_dir.h"

namespace strata::text {
namespace {

using strata::testing::error_of;
using ::testing::HasSubstr;

TEST(ParseJson, ReadsEveryKindOfValue) {
  const boost::json::value value = parse_json(
      R"( {"i": -12, "u": 18446744073709551615, "d": 2.5e1, "t": true, "n": null,
           "s": "a\u00e9\ud83d\ude00\n", "list": [1, [], {}]} )",
      "file");
  const boost::json::object& object = value.as_object();
  EXPECT_EQ(object.at("i").as_int64(), -12);
  EXPECT_EQ(object.at("u").as_uint64(), UINT64_MAX);
  EXPECT_EQ(object.at("d").as_double(), 25.0);
  EXPECT_TRUE(object.at("t").as_bool());
  EXPECT_TRUE(object.at("n").is_null());
  EXPECT_EQ(object.at("s").as_string(), "a\u00e9\U0001f600\n");
  EXPECT_EQ(boost::json::serialize(object.at("list")), "[1,[],{}]");
  EXPECT_EQ(object.begin()->key(), "i") << "members keep their order";
}

// As Python's json, which writes configurations and reads them.
TEST(ParseJson, RoundsNumbersCorrectly) {
  const Counter rng{.seed = 7};
  for (int i = 0; i < 100'000; ++i) {
    char text[64];
    std::snprintf(text, sizeof text, "%.17fe%d", rng.uniform(static_cast<uint64_t>(i)),
                  static_cast<int>(i % 60) - 40);
    EXPECT_EQ(parse_json(text, "file").as_double(), std::strtod(text, nullptr)) << text;
  }
}

TEST(ParseJson, SaysWhichFileAndByte) {
  const auto fault = [](const std::string& text) {
    return error_of([&] { parse_json(text, "config.json"); });
  };
  EXPECT_EQ(fault(R"({"a": 1, "b": {"c": 1, "c": 2}})"),
            "config.json: JSON at byte 27: the key \"c\" appears twice in one object");
  EXPECT_THAT(fault("{"), HasSubstr("config.json: JSON at byte 1: the text ends early"));
  EXPECT_THAT(fault("{} x"), HasSubstr("more text after the end"));
  EXPECT_THAT(fault("1e999"), HasSubstr("1e999 does not fit a double"));
  EXPECT_THAT(fault("\"\xff\""), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(fault(std::string(65, '[') + std::string(65, ']')),
              HasSubstr("nested deeper than 64 levels"));
  EXPECT_EQ(parse_json(std::string(64, '[') + std::string(64, ']'), "file").as_array().size(), 1U);
  EXPECT_EQ(error_of([] { parse_json_object("[1]", "config.json"); }),
            "config.json: got array, want a JSON object");
}

}  // namespace
}  // namespace strata::text
