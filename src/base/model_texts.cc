// SPDX-License-Identifier: Apache-2.0
#include "base/model_texts.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace strata {

ModelTexts::ModelTexts(std::string dir) : where_(std::move(dir)) {}

ModelTexts::ModelTexts(std::string where, Reader reader)
    : where_(std::move(where)), reader_(std::move(reader)) {}

std::optional<std::string> ModelTexts::find(std::string_view name, int64_t max_bytes) const {
  if (!reader_) {
    const std::string path = where(name);
    if (!file_exists(path)) return std::nullopt;
    return read_file(path, max_bytes);
  }
  std::optional<std::string> text = reader_(name);
  if (text && std::ssize(*text) > max_bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes, at most {} are accepted here", where(name), text->size(),
                            max_bytes));
  }
  return text;
}

std::string ModelTexts::read(std::string_view name, int64_t max_bytes) const {
  if (!reader_) return read_file(where(name), max_bytes);
  std::optional<std::string> text = find(name, max_bytes);
  if (!text) throw Error(ErrorCode::kNotFound, fmt::format("{}: there is none", where(name)));
  return std::move(*text);
}

std::string ModelTexts::where(std::string_view name) const {
  return fmt::format("{}{}{}", where_, reader_ ? ": " : "/", name);
}

}  // namespace strata
