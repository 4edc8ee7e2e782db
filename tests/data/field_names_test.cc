// SPDX-License-Identifier: Apache-2.0
#include "data/field_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/temp_dir.h"

namespace strata::data {
namespace {

using strata::testing::error_of;
using ::testing::HasSubstr;

std::string renamed(const std::string& record, const std::string& fields) {
  return rename_fields(record, parse_field_names(fields));
}

TEST(FieldNames, AreReadByOurs) {
  EXPECT_EQ(renamed(R"({"question":"a","answer":"b","id":1})", "question=prompt,answer=completion"),
            R"({"prompt":"a","completion":"b","id":1})");
  EXPECT_EQ(renamed(R"({"chat":[{"role":"user"}]})", "chat=messages"),
            R"({"messages":[{"role":"user"}]})");
  // Names change places; a record may lack one.
  EXPECT_EQ(renamed(R"({"input":"a","output":"b"})", "input=output,output=input"),
            R"({"output":"a","input":"b"})");
  EXPECT_EQ(renamed(R"({"text":"a"})", "question=prompt"), R"({"text":"a"})");
}

TEST(FieldNames, ListsOfCsvAreRead) {
  EXPECT_EQ(renamed(R"({"chat":" [{\"role\":\"user\"}]"})", "chat=messages"),
            R"({"messages":[{"role":"user"}]})");
  EXPECT_EQ(renamed(R"({"q":"[1]"})", "q=prompt"), R"({"prompt":"[1]"})");
}

TEST(FieldNames, RefusesWhatIsNoName) {
  for (const char* bad : {"question", "=prompt", "question=prompt,", ","})
    EXPECT_THAT(error_of([&] { parse_field_names(bad); }), HasSubstr("want NAME=FIELD")) << bad;
  EXPECT_THAT(error_of([] { parse_field_names("prompt=question"); }),
              HasSubstr("--fields: prompt=question: 'question' is no field that data is read by; "
                        "those are prompt, completion,"));
  EXPECT_THAT(error_of([] { parse_field_names("a=prompt,b=prompt"); }), HasSubstr("twice"));
  EXPECT_THAT(error_of([] { parse_field_names("a=prompt,a=text"); }), HasSubstr("twice"));
  EXPECT_TRUE(parse_field_names("").empty());
}

TEST(FieldNames, TwoFieldsOfOneNameAreAFault) {
  EXPECT_EQ(error_of([] { renamed(R"({"prompt":"a","question":"b"})", "question=prompt"); }),
            "--fields: the record has two fields that are read as 'prompt'");
  EXPECT_EQ(renamed("[1]", "question=prompt"), "[1]");
  EXPECT_THAT(error_of([] { renamed("{", "question=prompt"); }), HasSubstr("the record"));
}

}  // namespace
}  // namespace strata::data
