// SPDX-License-Identifier: Apache-2.0
// Options in YAML, as other trainers write their recipes, and files that are none.
#include "text/yaml_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/base/temp_dir.h"

namespace strata::text {
namespace {

using strata::testing::error_of;
using strata::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class YamlFile : public ::testing::Test {
 protected:
  YamlFile() {
    table_.number("lr", rate_, {0, 1, "0 to 1"}, "").also("learning-rate");
    table_.flag("resume", resumes_, "");
    table_.texts("data", files_, "");
  }
  std::map<std::string, std::vector<std::string>> read(const std::string& text) {
    write_file_atomic(dir_.file("r.yaml"), text);
    return read_yaml_options(dir_.file("r.yaml"), table_, "train");
  }
  std::string fault(const std::string& text) {
    return error_of([&] { read(text); });
  }

  TempDir dir_;
  OptionTable table_;
  double rate_ = 0;
  bool resumes_ = false;
  std::vector<std::string> files_;
};

TEST_F(YamlFile, HasValuesListsAndOthersSpelling) {
  auto options =
      read("# a recipe\nlearning_rate: 2e-4\nresume: true\ndata:\n  - a.jsonl\n  - 'b:2'\n");
  EXPECT_THAT(options["lr"], ElementsAre("2e-4"));
  EXPECT_THAT(options["resume"], ElementsAre("true"));
  EXPECT_THAT(options["data"], ElementsAre("a.jsonl", "b:2"));
  EXPECT_THAT(read("{lr: 0.1, data: [x]}")["data"], ElementsAre("x"));
}

TEST_F(YamlFile, NamesTheLineOfWhatIsWrong) {
  EXPECT_THAT(fault("lr: 1\nrank: 4\n"),
              HasSubstr("r.yaml:2: 'rank' is no option of strata train"));
  EXPECT_THAT(fault("lr: 1\nlearning_rate: 2\n"), HasSubstr("r.yaml:2: 'lr' is given twice"));
  EXPECT_THAT(fault("lr: [1, 2]\n"), HasSubstr("'lr': got a list"));
  EXPECT_THAT(fault("lr: {a: 1}\n"), HasSubstr("'lr': want a text"));
  EXPECT_THAT(fault("lr:\n"), HasSubstr("'lr': want a text"));
  EXPECT_THAT(fault("data: [a, [b]]\n"), HasSubstr("'data': want a text"));
  EXPECT_THAT(fault("[1]: 2\n"), HasSubstr("want a text"));
  EXPECT_THAT(fault("\n- lr\n"), HasSubstr("want a line NAME: VALUE"));
  EXPECT_THAT(fault(""), HasSubstr("want a line NAME: VALUE"));
  EXPECT_THAT(fault("lr: 1\n bad: : 2\n"), HasSubstr("r.yaml:2: "));
  EXPECT_THAT(fault("lr: *unknown\n"), HasSubstr("r.yaml:"));
  EXPECT_NE(fault("lr: " + std::string(100'000, '[')), "") << "as deep as it likes";
}

}  // namespace
}  // namespace strata::text
