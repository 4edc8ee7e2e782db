// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "report/progress.h"

namespace strata::data {
namespace {

constexpr size_t kMaxReported = 5;

// What a file seems to be that does not begin as JSON lines do, and what to do; empty of others.
std::string what_it_is(std::string_view content) {
  const size_t begin = std::min(content.find_first_not_of(" \t\r\n"), content.size());
  const std::string_view start = content.substr(begin);
  if (start.empty() || start[0] == '{') return "";
  if (start[0] == '[') {
    return "\nthis begins as one JSON array; want a JSON object a line: jq -c '.[]' FILE > "
           "FILE.jsonl";
  }
  if (start.starts_with("\x1f\x8b")) return "\nthis is compressed by gzip: gunzip it first";
  if (start.starts_with("PAR1")) return "\nthis is a Parquet file; want a JSON object a line";
  return "\nis this JSONL? want a JSON object a line, like {\"prompt\": ..., \"completion\": ...}";
}

struct Faults {
  std::string text;
  size_t count = 0;

  void add(const std::string& path, int64_t line_idx, const std::string& what) {
    ++count;
    if (count <= kMaxReported)
      text += fmt::format("{}{}:{}: {}", count > 1 ? "\n" : "", path, line_idx, what);
  }
  void raise(std::string_view content) const {
    if (count == 0) return;
    std::string message = text;
    if (count > kMaxReported)
      message += fmt::format("\nand {} more bad lines", count - kMaxReported);
    message += what_it_is(content);
    throw Error(ErrorCode::kInvalidArgument, message);
  }
};

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

void add_example(Dataset& dataset, Example example, int64_t max_length) {
  ++dataset.num_lines;
  const auto length = static_cast<int64_t>(example.tokens.size());
  if (length + 1 > max_length) {
    ++dataset.num_too_long;
    return;
  }
  dataset.num_tokens += length;
  dataset.num_trained += example.num_trained;
  dataset.examples.push_back(std::move(example));
}

}  // namespace

Dataset read_dataset(const std::string& path, const ExampleContext& context, int64_t max_length,
                     report::Progress* progress) {
  const MappedFile file(path);
  const std::string_view content(reinterpret_cast<const char*>(file.bytes().data()),
                                 file.bytes().size());
  Dataset dataset;
  Faults faults;
  int64_t line_idx = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++line_idx;
    if (is_blank(line)) continue;
    if (static_cast<int64_t>(line.size()) > kMaxLineBytes) {
      faults.add(path, line_idx,
                 fmt::format("{} bytes, at most {} a line", line.size(), kMaxLineBytes));
      continue;
    }
    try {
      add_example(dataset, make_example(line, context, dataset.ignored_fields), max_length);
    } catch (const Error& error) {
      faults.add(path, line_idx, error.what());
    }
    if (progress != nullptr)
      progress->update(static_cast<int64_t>(std::min(begin, content.size())));
  }
  faults.raise(content);
  if (dataset.examples.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        dataset.num_too_long == 0
            ? fmt::format("{}: no examples in it", path)
            : fmt::format("{}: all {} examples are longer than {} tokens; raise --max-length", path,
                          dataset.num_too_long, max_length));
  }
  return dataset;
}

}  // namespace strata::data
