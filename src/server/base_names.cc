#include "server/base_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace strata::server {
namespace {

std::pair<std::string, std::string> split(const std::string& option, const std::string& text) {
  const size_t sign = text.find('=');
  if (sign == std::string::npos || sign == 0 || sign + 1 == text.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: got '{}', want NAME=VALUE", option, text));
  }
  return {text.substr(0, sign), text.substr(sign + 1)};
}

std::string real_path(const std::string& name, const std::string& dir) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(dir, error);
  const bool there = !error && (std::filesystem::is_directory(real, error) ||
                                std::filesystem::is_regular_file(real, error));
  if (!there) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--model {}: '{}' is neither a directory nor a file", name, dir));
  }
  return real.string();
}

}  // namespace

bool valid_base_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 &&
         name.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-") ==
             std::string_view::npos;
}

BaseNames::BaseNames(const std::vector<std::string>& models,
                     const std::vector<std::string>& aliases,
                     const std::vector<std::string>& tokenizers) {
  if (models.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--model: no model is given; want NAME=DIR");
  }
  for (const std::string& text : models) {
    const auto [name, dir] = split("model", text);
    const std::string real = real_path(name, dir);
    const auto known = std::find(directories_.begin(), directories_.end(), real);
    const int model = static_cast<int>(known - directories_.begin());
    if (known == directories_.end()) directories_.push_back(real);
    add("model", name, model);
  }
  for (const std::string& text : aliases) {
    const auto [name, target] = split("alias", text);
    const BaseName* model = find_exact(target);
    if (model == nullptr) {
      throw Error(ErrorCode::kNotFound,
                  fmt::format("--alias {}: no model is called '{}'", name, target));
    }
    add("alias", name, model->model);
    names_.back().tokenizer_id = find_exact(target)->tokenizer_id;
  }
  for (const std::string& text : tokenizers) {
    const auto [name, id] = split("tokenizer", text);
    BaseName* model = find_exact(name);
    if (model == nullptr) {
      throw Error(ErrorCode::kNotFound, fmt::format("--tokenizer: no model is called '{}'", name));
    }
    model->tokenizer_id = id;
  }
}

BaseName* BaseNames::find_exact(std::string_view name) {
  const auto found = std::find_if(names_.begin(), names_.end(),
                                  [&](const BaseName& known) { return known.name == name; });
  return found == names_.end() ? nullptr : &*found;
}

void BaseNames::add(const std::string& option, const std::string& name, int model) {
  if (!valid_base_name(name)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: name '{}': want [A-Za-z0-9._/-]{{1,255}}", option, name));
  }
  if (find_exact(name) != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: the name '{}' is given twice", option, name));
  }
  names_.push_back({name, model, directories_[static_cast<size_t>(model)]});
}

const BaseName* BaseNames::find(std::string_view name) const {
  const auto match = [&](std::string_view text) -> const BaseName* {
    for (const BaseName& known : names_) {
      if (known.name == text) return &known;
    }
    return nullptr;
  };
  if (const BaseName* exact = match(name)) return exact;
  const size_t colon = name.find(':');
  return colon == std::string_view::npos ? nullptr : match(name.substr(0, colon));
}

}  // namespace strata::server
