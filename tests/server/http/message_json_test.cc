// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "server/http/message.h"

namespace strata::server {
namespace {

TEST(Json, ValuesKeepTheirOrderAndAreEscaped) {
  JsonObject object = {
      {"text", "a\"\n"}, {"number", int64_t{-3}}, {"yes", true}, {"none", nullptr}};
  object.add("double", 0.1).add("nan", std::numeric_limits<double>::quiet_NaN());
  object.add("list", JsonArray(std::vector<std::string>{"x", "y"}));
  object.add("inner", JsonObject{{"k\"", JsonArray()}, {"raw", Json::written("[1]")}});
  EXPECT_EQ(object.text(),
            R"({"text":"a\"\n","number":-3,"yes":true,"none":null,"double":0.1,"nan":null,)"
            R"("list":["x","y"],"inner":{"k\"":[],"raw":[1]}})");
  EXPECT_EQ(JsonObject().text(), "{}");
  EXPECT_EQ(json_quoted("\xff"), "\"\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace strata::server
