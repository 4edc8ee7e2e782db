// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/base_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/peft_config.h"

namespace strata::server {
namespace {

std::pair<std::string, std::string> split_name_value(const std::string& option,
                                                     const std::string& text) {
  const size_t sign = text.find('=');
  if (sign == std::string::npos || sign == 0 || sign + 1 == text.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: got '{}', want NAME=VALUE", option, text));
  }
  return {text.substr(0, sign), text.substr(sign + 1)};
}

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;

std::string real_path(const std::string& option, const std::string& name, const std::string& dir) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(dir, error);
  const bool there = !error && (std::filesystem::is_directory(real, error) ||
                                std::filesystem::is_regular_file(real, error));
  if (!there) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--{} {}: '{}' is neither a directory nor a file", option, name, dir));
  }
  return real.string();
}

// What an adapter's own file says it belongs to; empty where it does not.
std::string read_base_from_config(const std::string& name, const std::string& dir) {
  const std::string path = dir + "/adapter_config.json";
  if (!file_exists(path)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--adapter {}: '{}' has no adapter_config.json; is it a PEFT LoRA "
                            "folder?",
                            name, dir));
  }
  return parse_peft_config(read_file(path, kMaxConfigBytes), path).base_model_name_or_path;
}

constexpr std::string_view kHubFolder = "models--";

// ORG/NAME of models--ORG--NAME.
std::string hub_name(const std::string& repository) {
  std::string name = repository.substr(kHubFolder.size());
  const size_t owner_end = name.find("--");
  if (owner_end == std::string::npos) return name;
  name[owner_end] = '/';
  name.erase(owner_end + 1, 1);
  return name;
}

std::string last_part(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

bool valid_base_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && is_plain(name, "/");
}

BaseNames::BaseNames(const std::vector<std::string>& models,
                     const std::vector<std::string>& aliases,
                     const std::vector<std::string>& tokenizers,
                     const std::vector<std::string>& adapters) {
  if (models.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--model: no model is given; want NAME=DIR");
  }
  for (const std::string& text : models) add_model(text);
  for (const std::string& text : adapters) add_adapter(text);
  for (const std::string& text : aliases) add_alias(text);
  for (const std::string& text : tokenizers) set_tokenizer(text);
}

const BaseName* BaseNames::find_exact(std::string_view name) const {
  const auto found = std::ranges::find(names_, name, &BaseName::name);
  return found == names_.end() ? nullptr : &*found;
}

void BaseNames::add_name(const std::string& option, const std::string& name, int model) {
  if (!valid_base_name(name)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: name '{}': want [A-Za-z0-9._/-]{{1,255}}", option, name));
  }
  if (find_exact(name) != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: the name '{}' is given twice", option, name));
  }
  names_.push_back({name, model, directories_[static_cast<size_t>(model)], ""});
}

void BaseNames::add_model(const std::string& text) {
  const auto [name, dir] = split_name_value("model", text);
  const std::string real = real_path("model", name, dir);
  add_name("model", name, intern_directory(real));
}

int BaseNames::intern_directory(const std::string& real) {
  const auto known = std::find(directories_.begin(), directories_.end(), real);
  const int model = static_cast<int>(known - directories_.begin());
  if (known == directories_.end()) directories_.push_back(real);
  return model;
}

void BaseNames::add_alias(const std::string& text) {
  const auto [name, target] = split_name_value("alias", text);
  const BaseName* model = find_exact(target);
  if (model == nullptr) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--alias {}: no model is called '{}'", name, target));
  }
  add_name("alias", name, model->model);
  names_.back().tokenizer_id = find_exact(target)->tokenizer_id;
  names_.back().adapter = find_exact(target)->adapter;
}

void BaseNames::set_tokenizer(const std::string& text) {
  const auto [name, id] = split_name_value("tokenizer", text);
  const auto model = std::ranges::find(names_, name, &BaseName::name);
  if (model == names_.end()) {
    throw Error(ErrorCode::kNotFound, fmt::format("--tokenizer: no model is called '{}'", name));
  }
  model->tokenizer_id = id;
}

void BaseNames::add_adapter(const std::string& text) {
  const auto [name, dir] = split_name_value("adapter", text);
  const std::string real = real_path("adapter", name, dir);
  add_name("adapter", name, find_model_of_adapter(name, real));
  names_.back().adapter = real;
}

// The only model; else the one that adapter_config.json names: by a name here, by its directory, or
// by the last part of either.
int BaseNames::find_model_of_adapter(const std::string& name, const std::string& dir) const {
  const std::string base = read_base_from_config(name, dir);
  if (directories_.size() == 1) return 0;
  if (const auto model = find_model_by_name_or_path(base)) return *model;
  if (const auto model = find_model_by_last_part(base)) return *model;
  refuse_base_not_served(base, name, dir);
}

std::optional<int> BaseNames::find_model_by_name_or_path(const std::string& base) const {
  std::error_code ignored;
  const std::string real = std::filesystem::weakly_canonical(base, ignored).string();
  for (const BaseName& known : names_) {
    if (!known.adapter.empty()) continue;
    if (known.name == base || directories_[static_cast<size_t>(known.model)] == real)
      return known.model;
  }
  return std::nullopt;
}

std::optional<int> BaseNames::find_model_by_last_part(const std::string& base) const {
  if (base.empty()) return std::nullopt;
  for (const BaseName& known : names_) {
    if (!known.adapter.empty()) continue;
    if (last_part(known.name) == last_part(base) ||
        last_part(directories_[static_cast<size_t>(known.model)]) == last_part(base))
      return known.model;
  }
  return std::nullopt;
}

void BaseNames::refuse_base_not_served(const std::string& base, const std::string& name,
                                       const std::string& dir) const {
  std::vector<std::string> served;
  for (const BaseName& known : names_) {
    if (known.adapter.empty()) served.push_back(known.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--adapter {}: base_model_name_or_path of '{}/adapter_config.json' is "
                          "'{}', which is none of the served models: {}; serve that model, or name "
                          "one of these as it by --model",
                          name, dir, base, fmt::join(served, ", ")));
}

const BaseName& BaseNames::base_of(const BaseName& name) const {
  return *std::find_if(names_.begin(), names_.end(), [&](const BaseName& known) {
    return known.model == name.model && known.adapter.empty();
  });
}

std::string base_name_for(const std::string& dir) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::weakly_canonical(dir, ignored);
  if (!path.has_filename()) path = path.parent_path();
  const std::string repository = path.parent_path().parent_path().filename().string();
  const bool is_of_hub =
      path.parent_path().filename() == "snapshots" && repository.starts_with(kHubFolder);
  std::string name = is_of_hub ? hub_name(repository) : path.filename().string();
  for (char& c : name) {
    if (!valid_base_name({&c, 1})) c = '-';
  }
  return name.empty() ? "model" : name.substr(0, 255);
}

const BaseName* BaseNames::find(std::string_view name) const {
  if (const BaseName* exact = find_exact(name)) return exact;
  const size_t colon = name.find(':');
  return colon == std::string_view::npos ? nullptr : find_exact(name.substr(0, colon));
}

}  // namespace strata::server
