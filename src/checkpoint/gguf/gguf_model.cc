// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/gguf_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"

namespace strata {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitNumber = "split.no";
constexpr std::string_view kSplitTensors = "split.tensors.count";
constexpr int64_t kMaxParts = 10'000;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, what));
}

// "-00001-of-00003.gguf", part counted from one.
std::string part_suffix(int64_t part, int64_t count) {
  return fmt::format("-{:05}-of-{:05}{}", part, count, kSuffix);
}

// "model-00002-of-00003.gguf", but not the first part.
bool is_later_part(std::string_view name) {
  constexpr size_t kDigits = 5;
  const size_t of = name.rfind("-of-");
  const bool is_part = of != std::string_view::npos && of > kDigits &&
                       name.size() == of + std::string_view("-of-00001.gguf").size() &&
                       name[of - kDigits - 1] == '-';
  return is_part && name.substr(of - kDigits, kDigits) != "00001";
}

// Models' files of a folder; of a split one the first part. Those of projectors for images are no
// models of their own.
std::vector<std::string> list_model_files(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(kSuffix) || name.starts_with("mmproj")) continue;
    if (!is_later_part(name)) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string find_model_file(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return path;
  const std::vector<std::string> found = list_model_files(path);
  if (found.size() == 1) return found.front();
  if (found.empty()) fail(path, "holds no first part of a model in GGUF");
  constexpr std::ptrdiff_t kMostShown = 10;
  const auto end = found.begin() + std::min(kMostShown, std::ssize(found));
  fail(path, fmt::format("holds {} models in GGUF; give one of {}{}", found.size(),
                         fmt::join(found.begin(), end, ", "), end == found.end() ? "" : ", ..."));
}

// What comes before the suffix of every part; Error where `path` is not named as one.
std::string stem_of_part(const std::string& path, int64_t count) {
  const size_t size = part_suffix(1, count).size();
  std::string stem = path.size() > size ? path.substr(0, path.size() - size) : "";
  for (int64_t part = 1; part <= count; ++part) {
    if (path == stem + part_suffix(part, count)) return stem;
  }
  fail(path, fmt::format("one of {} parts, whose names end like '{}'; was it renamed?", count,
                         part_suffix(1, count)));
}

// Against what the file's name says.
void check_part_keys(const GgufFile& file, int64_t part, int64_t count) {
  const GgufKeys& keys = file.keys();
  if (keys.integer(kSplitNumber) != part - 1 || keys.integer(kSplitCount) != count) {
    fail(file.path(),
         fmt::format("its keys say part {} of {}, its name {} of {}",
                     keys.integer(kSplitNumber) + 1, keys.integer(kSplitCount), part, count));
  }
}

void check_is_model(const GgufKeys& keys) {
  const std::string kind = keys.text("general.type", "model");
  if (kind != "model") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: general.type is '{}', want a model{}", keys.where(), kind,
                            kind == "adapter" ? "; adapters are read in PEFT's form" : ""));
  }
}

// What the keys of the first part say, of all parts.
void check_num_tensors(const std::string& path, const GgufKeys& keys, size_t num_parts,
                       int64_t num_tensors) {
  const int64_t total = keys.integer(kSplitTensors, num_tensors);
  if (num_parts > 1 && total != num_tensors) {
    fail(path, fmt::format("the {} parts have {} tensors, {} says {}", num_parts, num_tensors,
                           kSplitTensors, total));
  }
}

}  // namespace

GgufModel::GgufModel(const std::string& path) {
  const std::string file = find_model_file(path);
  GgufFile first(file);
  const int64_t count = first.keys().integer(kSplitCount, 1);
  if (count == 1 || count == 0) {
    files_.push_back(std::move(first));
  } else {
    open_parts(file, count);
  }
  check_is_model(keys());
  architecture_ = keys().text("general.architecture");
  index_tensors();
  check_num_tensors(file, keys(), files_.size(), std::ssize(tensors_));
}

void GgufModel::index_tensors() {
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const GgufTensor& tensor : files_[i].tensors()) {
      if (!by_name_.emplace(tensor.name, tensors_.size()).second) {
        fail(files_[i].path(),
             fmt::format("tensor '{}' is in another part, too; parts of different models?",
                         tensor.name));
      }
      tensors_.push_back({&tensor, i});
    }
  }
}

void GgufModel::open_parts(const std::string& path, int64_t count) {
  if (count < 0 || count > kMaxParts) {
    fail(path, fmt::format("{}: got {}, want 1 to {}", kSplitCount, count, kMaxParts));
  }
  const std::string stem = stem_of_part(path, count);
  for (int64_t part = 1; part <= count; ++part) {
    const std::string name = stem + part_suffix(part, count);
    if (!file_exists(name)) {
      throw Error(ErrorCode::kNotFound,
                  fmt::format("{}: part {} of {} is missing; all of them belong in one folder",
                              name, part, count));
    }
    files_.emplace_back(name);
    check_part_keys(files_.back(), part, count);
  }
}

const GgufTensor* GgufModel::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : tensors_[found->second].info;
}

bool is_gguf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return file_exists(path) && has_gguf_magic(path);
  const bool is_hf = file_exists(path + "/config.json") ||
                     file_exists(path + "/model.safetensors") ||
                     file_exists(path + "/model.safetensors.index.json");
  if (is_hf) return false;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == kSuffix) return true;
  }
  return false;
}

}  // namespace strata
