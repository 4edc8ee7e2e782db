// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/peft_pattern.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using testing::data_path;
using testing::error_of;
using ::testing::HasSubstr;

using Row = std::vector<std::string>;

// The rows of a table, whose cells are between tabs.
std::vector<Row> rows_of(const std::string& name) {
  std::ifstream table(data_path(name));
  std::vector<Row> rows;
  for (std::string line; std::getline(table, line);) {
    Row& cells = rows.emplace_back();
    size_t begin = 0;
    for (size_t tab = line.find('\t'); tab != std::string::npos; tab = line.find('\t', begin)) {
      cells.push_back(line.substr(begin, tab - begin));
      begin = tab + 1;
    }
    cells.push_back(line.substr(begin));
  }
  return rows;
}

// patterns.tsv holds the answers of PEFT's get_pattern_key: module, index of the key or -1, keys.
TEST(PeftPatterns, MatchAsPeftDoes) {
  const std::vector<Row> rows = rows_of("patterns.tsv");
  for (const Row& cells : rows) {
    const std::span<const std::string> keys(cells.begin() + 2, cells.end());
    PeftPatterns patterns(keys, "file");
    const std::optional<size_t> match = patterns.find_matching_key(cells[0]);
    EXPECT_EQ(match ? static_cast<int>(*match) : -1, std::stoi(cells[1]))
        << ::testing::PrintToString(cells);
  }
  EXPECT_EQ(rows.size(), 220u);
}

// python_re.tsv (tools/golden/make_python_re.py) has what CPython's re makes of keys: the modules,
// then for each key "error" or a 1 for each module that it decides for.
TEST(PeftPatterns, MeanWhatPythonMakesOfThem) {
  const std::vector<Row> rows = rows_of("python_re.tsv");
  size_t num_refused = 0;  // by us alone
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::string& key = rows[i][0];
    std::string answers;
    const std::string fault = error_of([&] {
      PeftPatterns patterns({&key, 1}, "file");
      for (size_t k = 1; k < rows[0].size(); ++k)
        answers += patterns.find_matching_key(rows[0][k]) ? '1' : '0';
    });
    if (!fault.empty() && rows[i][1] != "error") {
      ++num_refused;
    } else {
      EXPECT_EQ(fault.empty() ? answers : "error", rows[i][1]) << key;
    }
  }
  EXPECT_EQ(rows.size(), 874u);
  EXPECT_LT(num_refused, 100u);
}

// Beyond ASCII Python's classes and cases are others.
TEST(PeftPatterns, ExpressionsAreHeldToPrintableAsciiAlone) {
  const std::vector<std::string> simple = {"q.proj"}, expression = {"q_proj", "\\w+_proj"};
  EXPECT_EQ(PeftPatterns(simple, "file").find_matching_key("caf\xc3\xa9.q\xc3\xa9proj"), 0u);
  EXPECT_EQ(PeftPatterns(expression, "file").find_matching_key("caf\xc3\xa9.q_proj"), 0u);
  EXPECT_THAT(
      error_of([&] {
        static_cast<void>(PeftPatterns(expression, "file").find_matching_key("caf\xc3\xa9.k_proj"));
      }),
      HasSubstr("key \"\\\\w+_proj\": the module"));
}

TEST(PeftPatterns, HostileExpressionsEndSoon) {
  const auto start = std::chrono::steady_clock::now();
  const std::string module = "model." + std::string(60, 'a') + ".layers.0.self_attn.q_proj";
  const auto fault_of = [&](const std::string& key) {
    return error_of([&] {
      PeftPatterns patterns({&key, 1}, "file: rank_pattern");
      for (int i = 0; i < 100; ++i) static_cast<void>(patterns.find_matching_key(module));
    });
  };
  for (const char* key : {"(a+)+[!?]", "([a-z]+)*[!?]", "(?:a|a)*(?:a|a)*(?:a|aa)*[!?]"})
    EXPECT_THAT(fault_of(key), HasSubstr("more than 20000000 steps")) << key;
  const std::string many(4000, '(');
  for (const std::string& key :
       {many, std::string("((ab?){1000}){1000}"), std::string("(?R)"), std::string("(a|b"),
        std::string("["), std::string("*"), std::string("\\C"), std::string(5000, 'a'),
        std::string("(?<n>(?&n)a)"), std::string("\xff\\d"), std::string("(.*)*[!?]")}) {
    EXPECT_THAT(fault_of(key), HasSubstr("file: rank_pattern: key")) << key.substr(0, 50);
  }
  // What Python knows and we do not, or reads otherwise, is refused by name.
  for (const char* key : {"(a)\\1", "(?P<n>a)", "\\p{L}+", "[a[bc]]", "q(?i)_proj", "a+*",
                          "a{2}{3}", "{2}a", "[\\d-a]"})
    EXPECT_THAT(fault_of(key), HasSubstr("not supported")) << key;
  for (const char* key : {"1[0-9]{1}?.q_proj", "1[0-9]{01,1}?.q_proj", "a{1,2}+", "a{,}"})
    EXPECT_EQ(fault_of(key), "") << key;
  EXPECT_THAT(fault_of("(?=?!x)y"), HasSubstr("file: rank_pattern: key"));
  EXPECT_THAT(fault_of("model(?=[.])[.]a{2,3}?.*q_proj"), ::testing::Not(HasSubstr("key")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// A file may have many keys; what they take together is bounded, and ordinary ones take little.
TEST(PeftPatterns, TakeBoundedMemory) {
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(fmt::format("((ab){{250}}){{130}}{:05}", i));
  EXPECT_THAT(error_of([&] { PeftPatterns patterns(keys, "file: rank_pattern"); }),
              HasSubstr("the expressions so far take more than 256 MiB"));
  keys.clear();
  for (int i = 0; i < 2'000; ++i)
    keys.push_back(fmt::format("^model\\.layers\\.{}\\.self_attn\\.q_proj", i));
  EXPECT_NO_THROW(PeftPatterns(keys, "file: rank_pattern"));
}

}  // namespace
}  // namespace strata
