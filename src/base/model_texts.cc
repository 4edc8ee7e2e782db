// SPDX-License-Identifier: Apache-2.0
#include "base/model_texts.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/mutex.h"

namespace strata {
namespace {

constexpr int64_t kKeptBytes = 64 << 10;  // of a text: a config, not a tokenizer

// The files of a directory, of which each small one is read once.
class Directory {
 public:
  std::optional<std::string> read_cached(const std::string& path, int64_t max_bytes) const {
    const MutexLock lock(known_->mutex);
    const auto known = known_->texts.find(path);
    if (known != known_->texts.end() && std::ssize(known->second) <= max_bytes)
      return known->second;
    if (!file_exists(path)) return std::nullopt;
    std::string text = read_file(path, max_bytes);
    if (std::ssize(text) <= kKeptBytes) known_->texts[path] = text;
    return text;
  }
  // The call of a Reader; the limit is the one of read_cached().
  std::optional<std::string> operator()(std::string_view path) const {
    return read_cached(std::string(path), INT64_MAX);
  }

 private:
  struct Known {
    Mutex mutex;
    std::map<std::string, std::string> texts GUARDED_BY(mutex);  // by path
  };
  std::shared_ptr<Known> known_ = std::make_shared<Known>();
};

}  // namespace

ModelTexts::ModelTexts(std::string dir) : where_(std::move(dir)), reader_(Directory()) {}

ModelTexts::ModelTexts(std::string where, Reader reader)
    : where_(std::move(where)), reader_(std::move(reader)) {}

std::optional<std::string> ModelTexts::find(std::string_view name, int64_t max_bytes) const {
  if (const auto* files = reader_.target<Directory>())
    return files->read_cached(where(name), max_bytes);
  std::optional<std::string> text = reader_(name);
  if (text && std::ssize(*text) > max_bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes, at most {} are accepted here", where(name), text->size(),
                            max_bytes));
  }
  return text;
}

std::string ModelTexts::read(std::string_view name, int64_t max_bytes) const {
  std::optional<std::string> text = find(name, max_bytes);
  if (text) return std::move(*text);
  if (reader_.target<Directory>() != nullptr) return read_file(where(name), max_bytes);  // says why
  throw Error(ErrorCode::kNotFound, fmt::format("{}: there is none", where(name)));
}

std::string ModelTexts::where(std::string_view name) const {
  const bool is_directory = reader_.target<Directory>() != nullptr;
  return fmt::format("{}{}{}", where_, is_directory ? "/" : ": ", name);
}

}  // namespace strata
