// SPDX-License-Identifier: Apache-2.0
// Which token ends a turn, by the chat templates of three dozen published models: what
// tools/golden/make_trl_templates.py saw transformers write behind an answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "setup/text_stack.h"

namespace strata::apps {
namespace {

struct Row {
  std::string name;
  std::string end;  // empty: the template has no token there
};

std::vector<Row> read_rows() {
  std::vector<Row> rows;
  const std::string lines =
      read_file(std::string(STRATA_SOURCE_DIR) + "/tests/data/text/trl_templates.jsonl", 1 << 20);
  for (size_t pos = 0; pos < lines.size();) {
    const size_t end = lines.find('\n', pos);
    const boost::json::value row = boost::json::parse(lines.substr(pos, end - pos));
    const boost::json::value& token = row.at("end");
    rows.push_back({boost::json::value_to<std::string>(row.at("template")),
                    token.is_null() ? "" : boost::json::value_to<std::string>(token)});
    pos = end + 1;
  }
  return rows;
}

// Every token that ends a turn somewhere, and a letter.
text::Tokenizer with_all_ends(const std::vector<Row>& rows) {
  boost::json::array added;
  std::vector<std::string> seen;
  for (const Row& row : rows) {
    if (row.end.empty() || std::ranges::find(seen, row.end) != seen.end()) continue;
    added.push_back({{"id", seen.size() + 1}, {"content", row.end}, {"special", true}});
    seen.push_back(row.end);
  }
  return text::Tokenizer::parse(
      R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":)" +
          boost::json::serialize(added) + "}",
      "tokenizer.json");
}

// Nothing also where the template refuses contents that are plain texts, for transformers too.
std::optional<int32_t> end_of_turn(const text::ChatTemplate& chat,
                                   const text::Tokenizer& tokenizer) {
  try {
    return find_turn_end_token(chat, tokenizer, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

TEST(EndOfTurn, IsWhatPublishedTemplatesWriteBehindAnAnswer) {
  const std::vector<Row> rows = read_rows();
  ASSERT_GE(rows.size(), 70u);
  const text::Tokenizer tokenizer = with_all_ends(rows);
  for (const Row& row : rows) {
    const std::string file = std::string(STRATA_TOKENIZERS) + "/trl/" + row.name + ".jinja";
    const auto chat = text::ChatTemplate::parse(read_file(file, 1 << 20),
                                                R"({"bos_token":"<s>","eos_token":"</s>"})");
    std::optional<int32_t> wanted;
    if (!row.end.empty()) wanted = tokenizer.token_to_id(row.end);
    EXPECT_EQ(end_of_turn(chat, tokenizer), wanted) << row.name << " " << row.end;
  }
}

}  // namespace
}  // namespace strata::apps
