// SPDX-License-Identifier: Apache-2.0
#include "data/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "data/batch_plan.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

constexpr double kMostWeight = 1000;
constexpr uint64_t kWeightStream = uint64_t{1} << 40;  // apart from the streams of epochs

// `parquet`: a file that it has instead, or empty.
[[noreturn]] void refuse_without_data(const std::string& option, const std::string& folder,
                                      const std::string& parquet) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: {}: no files of data in this folder; want .jsonl, .json, .csv or "
                          ".tsv, perhaps with .gz or .zst{}",
                          option, folder,
                          parquet.empty() ? "" : ", and it has " + parquet + ": name that file"));
}

std::vector<std::string> list_data_files(const std::string& option, const std::string& folder) {
  std::vector<std::string> files;
  std::string parquet;
  std::error_code fault, ignored;
  for (fs::directory_iterator at(folder, fault); !fault && at != fs::end(at); at.increment(fault)) {
    const std::string name = at->path().filename().string();
    if (!at->is_regular_file(ignored) || name.starts_with('.')) continue;
    if (name.ends_with(".parquet")) parquet = at->path().string();
    if (is_data_file_name(name)) files.push_back(at->path().string());
  }
  if (fault) {
    throw Error(ErrorCode::kIo, fmt::format("--{}: {}: this folder cannot be read: {}", option,
                                            folder, fault.message()));
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) refuse_without_data(option, folder, parquet);
  return files;
}

double parse_weight(const std::string& option, const std::string& text, const std::string& number) {
  double weight = 1;
  const char* end = number.data() + number.size();
  const auto [rest, fault] = std::from_chars(number.data(), end, weight);
  if (fault == std::errc() && rest == end && weight > 0 && weight <= kMostWeight) return weight;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: {}: got the weight '{}', want a number above 0, at most {:g}",
                          option, text, number, kMostWeight));
}

constexpr const char* kWanted =
    "want JSONL, JSON or CSV, a folder of them, ORG/NAME of a data set in the hub's cache, or - "
    "for "
    "stdin";

// A model, an adapter or a part of one, where data is wanted.
void refuse_part_of_model(const std::string& option, const std::string& path) {
  using Belongs = FileKind::Belongs;
  std::error_code fault;
  std::string what;
  if (!fs::is_directory(path, fault)) {
    const FileKind kind = kind_of_file(path);
    const bool is_data = kind.belongs == Belongs::kAnywhere || kind.belongs == Belongs::kToData;
    if (!is_data || kind.what == kGitLfsPointer.what) what = describe_file_kind(kind);
  } else if (file_exists(path + "/config.json")) {
    what = "this is a model; it goes behind --model";
  } else if (file_exists(path + "/adapter_config.json")) {
    what = "this is a LoRA adapter; it goes behind --adapter";
  }
  if (what.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: {}: {}; {}", option, path, what, kWanted));
}

// The weight behind the last colon, where what stands before it is there.
Source parse_source(const std::string& option, const std::string& text) {
  if (text == "-" || file_exists(text)) return {text};
  const size_t colon = text.rfind(':');
  const std::string path = text.substr(0, colon);
  if (colon == std::string::npos || (path != "-" && !file_exists(path))) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--{}: {}: no such file; {}", option, text, kWanted));
  }
  return {path, parse_weight(option, text, text.substr(colon + 1))};
}

void check_has_no_weight(const std::string& option, const std::string& text, const Source& source) {
  if (source.path == text) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: {}: a weight says how often examples are trained on; give {} "
                          "alone",
                          option, text, source.path));
}

void check_stdin_once(const std::string& option, const std::vector<Source>& sources) {
  const auto is_stdin = [](const Source& source) { return source.path == "-"; };
  if (std::count_if(sources.begin(), sources.end(), is_stdin) > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: stdin (-) is named twice, and can be read once", option));
  }
}

// Appends a random share of the examples, ascending.
void append_random_share(std::span<const int64_t> examples, double share, uint64_t seed,
                         uint64_t stream, std::vector<int64_t>& order) {
  std::vector<int64_t> drawn = shuffled_indices(std::ssize(examples), seed, stream);
  drawn.resize(static_cast<size_t>(std::llround(share * static_cast<double>(examples.size()))));
  std::sort(drawn.begin(), drawn.end());
  for (const int64_t i : drawn) order.push_back(examples[static_cast<size_t>(i)]);
}

}  // namespace

bool is_data_file_name(std::string name) {
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  }
  constexpr std::array<std::string_view, 5> kSuffixes = {".jsonl", ".ndjson", ".json", ".csv",
                                                         ".tsv"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::vector<Source> find_sources(const std::string& option, const std::vector<std::string>& texts,
                                 Weights weights) {
  std::vector<Source> sources;
  for (const std::string& text : texts) {
    const Source source = parse_source(option, text);
    if (weights == Weights::kNone) check_has_no_weight(option, text, source);
    refuse_part_of_model(option, source.path);
    std::error_code fault;
    if (!fs::is_directory(source.path, fault)) {
      sources.push_back(source);
      continue;
    }
    for (std::string& file : list_data_files(option, source.path)) {
      sources.push_back({std::move(file), source.weight});
    }
  }
  check_stdin_once(option, sources);
  return sources;
}

std::vector<int64_t> weighted_order(const std::vector<SourceRange>& ranges,
                                    const std::vector<int64_t>& kept, uint64_t seed) {
  std::vector<int64_t> order;
  auto next = kept.begin();
  for (size_t r = 0; r < ranges.size(); ++r) {
    const int64_t end = ranges[r].first + ranges[r].count;
    const auto begin = next;
    while (next != kept.end() && *next < end) ++next;
    const double whole = std::floor(ranges[r].weight);
    for (int64_t i = 0; i < static_cast<int64_t>(whole); ++i)
      order.insert(order.end(), begin, next);
    append_random_share({begin, next}, ranges[r].weight - whole, seed, kWeightStream + r, order);
  }
  return order;
}

}  // namespace strata::data
