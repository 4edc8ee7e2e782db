// SPDX-License-Identifier: Apache-2.0
// The rows of what a server says no to for now, as docs/refusals.md shows them.
#include "server/tinker/refusals.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace strata::server {
namespace {

constexpr const char* kStages[] = {"Connections",
                                   "Requests, by their headers",
                                   "Bodies",
                                   "Admission",
                                   "Queues and results",
                                   "Polls",
                                   "Answers",
                                   "Downloads"};

// In lines of at most 120 columns.
std::string wrapped(const std::string& text, const std::string& indent) {
  constexpr size_t kColumns = 120;
  std::istringstream words(text);
  std::string out, line, word;
  while (words >> word) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line = indent + word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
  }
  return out + line + "\n";
}

// Without the forms of numbers: {:.1f} is {}.
std::string readable(std::string_view text) {
  if (text == "{}") return "in the words of what had no space";
  std::string out;
  bool is_form = false;
  for (const char c : text) {
    is_form = (is_form || c == ':') && c != '}' && !out.empty() && (is_form || out.back() == '{');
    if (!is_form) out += c;
  }
  return out;
}

std::string shown(const Refusal& row) {
  std::string text = "- " + std::to_string(row.status);
  if (row.other_status != 0) text += " or " + std::to_string(row.other_status);
  if (row.retry_seconds != 1) text += ", after " + std::to_string(row.retry_seconds) + " s";
  if (!row.option.empty()) text += " (`" + std::string(row.option) + "`)";
  return wrapped(text + ": " + readable(row.text), "  ");
}

std::string table(const std::vector<const Refusal*>& rows) {
  std::string out;
  for (size_t stage = 0; stage < std::size(kStages); ++stage) {
    out += "\n## " + std::string(kStages[stage]) + "\n\n";
    for (const Refusal* row : rows)
      if (row->stage == static_cast<Stage>(stage)) out += shown(*row);
  }
  return out;
}

std::vector<const Refusal*> all_rows() {
  std::vector<const Refusal*> rows(std::begin(kHttpRefusals), std::end(kHttpRefusals));
  rows.insert(rows.end(), std::begin(kTinkerRefusals), std::end(kTinkerRefusals));
  return rows;
}

std::string source_file(const std::string& path) {
  return read_file(std::string(STRATA_SOURCE_DIR) + "/" + path, 1 << 20);
}

size_t num_rows_in(const std::string& source) {
  size_t count = 0;
  for (size_t at = source.find("constexpr Refusal k"); at != std::string::npos;
       at = source.find("constexpr Refusal k", at + 1))
    ++count;
  return count;
}

TEST(Refusals, AreTheTableOfTheDocs) {
  const std::string docs = source_file("docs/refusals.md");
  EXPECT_EQ(docs.substr(docs.find("\n## ")), table(all_rows()));
}

TEST(Refusals, AreAllListed) {
  EXPECT_EQ(std::size(kHttpRefusals), num_rows_in(source_file("src/server/http/refusals.h")));
  EXPECT_EQ(std::size(kTinkerRefusals), num_rows_in(source_file("src/server/tinker/refusals.h")));
}

// A client that reads the text alone knows which option it is, where there is one.
TEST(Refusals, NameTheirOption) {
  for (const Refusal* row : all_rows()) {
    EXPECT_TRUE(row->status == 429 || row->status == 503) << row->text;
    EXPECT_GE(row->retry_seconds, 1) << row->text;
    if (row->option.empty() || row->text.find("{}") != std::string_view::npos) continue;
    EXPECT_NE(row->text.find(row->option), std::string_view::npos) << row->text;
  }
}

}  // namespace
}  // namespace strata::server
