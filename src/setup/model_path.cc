// SPDX-License-Identifier: Apache-2.0
#include "setup/model_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/peft_config.h"
#include "setup/hub_cache.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWanted =
    "want a Hugging Face directory (config.json, model.safetensors, tokenizer.json), a GGUF file, "
    "or ORG/NAME of the hub";
constexpr const char* kWantedAdapter =
    "want a LoRA adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors)";

[[noreturn]] void refuse(ErrorCode code, const std::string& option, const std::string& typed,
                         const std::string& what) {
  throw Error(code, fmt::format("--{}: {}: {}", option, typed, what));
}

bool is_directory(const std::string& path) {
  std::error_code fault;
  return fs::is_directory(path, fault);
}

bool is_model(const std::string& path) {
  return file_exists(path + "/config.json") || is_gguf(path);
}

std::string file_name_of(const std::string& path) { return fs::path(path).filename().string(); }

// The names in a folder that end so, sorted.
std::vector<std::string> list_names_ending_with(const std::string& dir, std::string_view ending) {
  std::vector<std::string> names;
  std::error_code fault;
  for (fs::directory_iterator it(dir, fault), end; !fault && it != end; it.increment(fault)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(ending)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_pickle(std::string_view name) {
  return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
}

std::string_view wanted_of(const std::string& option) {
  return option == "adapter" ? kWantedAdapter : kWanted;
}

[[noreturn]] void refuse_file(const std::string& option, const std::string& typed) {
  const FileKind kind = kind_of_file(typed);
  const std::string dir = folder_of(typed);
  const bool is_of_adapter = kind.belongs == FileKind::Belongs::kToAdapter;
  const bool is_of_model = kind.belongs == FileKind::Belongs::kToModel && option != "adapter" &&
                           file_exists(dir + "/config.json");
  if (is_of_model || (is_of_adapter && is_adapter_directory(dir))) {
    refuse(ErrorCode::kInvalidArgument, option, typed,
           fmt::format("this is {}; give the directory that it is in: {}", kind.what, dir));
  }
  if (typed.ends_with(".tar")) {
    refuse(ErrorCode::kInvalidArgument, option, typed,
           "this is an archive; strata merge and convert take that of a checkpoint as --adapter; "
           "here unpack it and give the folder: mkdir DIR && tar -C DIR -xf FILE");
  }
  refuse(is_pickle(typed) ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument, option, typed,
         fmt::format("{}; {}", describe_file_kind(kind), wanted_of(option)));
}

[[noreturn]] void refuse_missing(const std::string& option, const std::string& typed) {
  if (!is_hub_name(typed)) {
    refuse(ErrorCode::kNotFound, option, typed,
           fmt::format("no such directory; {}", wanted_of(option)));
  }
  refuse(
      ErrorCode::kNotFound, option, typed,
      fmt::format("no such directory, and no such model in the cache of the Hugging Face hub; {}",
                  how_to_get(typed)));
}

// The folders in `folder` that are models or adapters, as "; do you mean A, B or C?"; else nothing.
std::string suggestion_from_inside(const std::string& folder) {
  constexpr size_t kMost = 5;
  std::vector<std::string> found;
  std::error_code fault;
  for (fs::directory_iterator it(folder, fault), end; !fault && it != end; it.increment(fault)) {
    const std::string path = it->path().string();
    if (file_exists(path + "/config.json") || is_adapter_directory(path)) found.push_back(path);
  }
  if (found.empty()) return {};
  std::sort(found.begin(), found.end());
  found.resize(std::min(found.size(), kMost));
  const std::string last = found.back();
  found.pop_back();
  return fmt::format("; do you mean {}{}{}?", fmt::join(found, ", "), found.empty() ? "" : " or ",
                     last);
}

// Says what a folder without config.json may be instead.
[[noreturn]] void refuse_folder_without_config(const std::string& option,
                                               const std::string& typed) {
  const std::string name = hub_name_of_cache_folder(file_name_of(typed));
  if (!name.empty()) {
    refuse(
        ErrorCode::kInvalidArgument, option, typed,
        fmt::format("a folder of the Hugging Face hub's cache; give the model by name: {}", name));
  }
  refuse(ErrorCode::kInvalidArgument, option, typed,
         fmt::format("a directory without config.json{}{}; {}", suggestion_from_inside(typed),
                     file_exists(typed + "/params.json")
                         ? ", with params.json: weights in their maker's own form, where the hub "
                           "mostly has another repository in Hugging Face's"
                         : "",
                     kWanted));
}

bool has_weights(const std::string& dir) {
  return !list_names_ending_with(dir, ".safetensors").empty() ||
         !list_names_ending_with(dir, ".safetensors.index.json").empty();
}

// A model's directory is right but for its weights: said here where the reason is known; else
// whoever loads them says so.
void check_has_weights(const std::string& typed, const std::string& dir, bool is_from_hub) {
  if (has_weights(dir)) return;
  const bool has_pickles = !list_names_ending_with(dir, ".bin").empty() ||
                           !list_names_ending_with(dir, ".pt").empty() ||
                           !list_names_ending_with(dir, ".pth").empty();
  if (has_pickles) {
    refuse(
        ErrorCode::kUnsupported, "model", typed,
        "its weights are files of PyTorch (.bin, .pt, .pth), which are not read, since loading one "
        "may run code; save it as safetensors: model.save_pretrained(DIR) of transformers does");
  }
  if (is_from_hub) {
    refuse(
        ErrorCode::kNotFound, "model", typed,
        fmt::format("{} has no weights: a download that did not end? {}", dir, how_to_get(typed)));
  }
}

// Where a folder that an adapter names may be, as seen from the adapter's and from those above it.
class FoldersAbove {
 public:
  explicit FoldersAbove(const std::string& dir) : dir_(dir) {
    const fs::path whole = fs::absolute(dir).lexically_normal();
    depth_ = std::distance(whole.begin(), whole.end());
  }

  // The nearest for which `accepts` is true; empty: none.
  [[nodiscard]] std::string find(const fs::path& path,
                                 bool (*accepts)(const std::string& path)) const {
    fs::path folder = dir_;
    for (std::ptrdiff_t up = 0; up < depth_; ++up, folder /= "..") {
      const std::string candidate = (folder / path).lexically_normal().string();
      if (accepts(candidate)) return candidate;
    }
    return {};
  }

 private:
  fs::path dir_;
  std::ptrdiff_t depth_ = 0;
};

// The last parts of a path that is no longer there, the longest first: a model and its adapters may
// have moved together.
std::string find_moved_base(const FoldersAbove& folders, const fs::path& base) {
  for (fs::path tail = base.lexically_normal().relative_path(); !tail.empty();) {
    std::string found = folders.find(tail, is_model);
    if (!found.empty()) return found;
    tail = tail.lexically_relative(*tail.begin());
    if (tail == ".") break;
  }
  return {};
}

// ORG/NAME of a snapshot in a hub's cache, which may be another machine's.
std::optional<std::string> find_snapshot_by_folder_name(const fs::path& base) {
  for (const fs::path& part : base) {
    const std::string name = hub_name_of_cache_folder(part.string());
    if (!name.empty()) return find_in_hub_cache(name);
  }
  return std::nullopt;
}

// Whether a name of two parts is a folder's rather than one of the hub's: the first part is a
// folder here or above the adapter. Adapters of Strata before 0.3 name models/NAME as it was typed.
bool is_folder_name(const std::string& adapter, const std::string& base) {
  const std::string first = base.substr(0, base.find('/'));
  return first == "models" || is_directory(first) ||
         !FoldersAbove(adapter).find(first, is_directory).empty();
}

[[noreturn]] void refuse_adapter_without_base(const std::string& adapter) {
  const std::string base = read_base_name_of_adapter(adapter);
  const bool is_of_hub = is_hub_name(base) && !is_folder_name(adapter, base);
  const std::string where =
      base.empty() ? "its adapter_config.json does not say of which model"
                   : fmt::format(
                         "its base model '{}' is neither a model here, in the adapter's folder or "
                         "one above it, nor in the cache of the Hugging Face hub{}",
                         base, is_of_hub ? "; " + how_to_get(base) : "");
  refuse(
      ErrorCode::kNotFound, "model", adapter,
      fmt::format("this is a LoRA adapter, and {}; give the base by name: --model BASE --adapter "
                  "{}",
                  where, adapter));
}

}  // namespace

bool is_adapter_directory(const std::string& dir) {
  return !file_exists(dir + "/config.json") && (file_exists(dir + "/adapter_config.json") ||
                                                file_exists(dir + "/adapter_model.safetensors"));
}

std::string read_base_name_of_adapter(const std::string& dir) {
  constexpr int64_t kMaxConfigBytes = 16 << 20;
  const std::string path = dir + "/adapter_config.json";
  if (!file_exists(path)) return "";
  return parse_peft_config(read_file(path, kMaxConfigBytes), path).base_model_name_or_path;
}

std::string find_base_of_adapter(const std::string& dir) {
  constexpr size_t kMaxPath = 4096;
  const std::string base = read_base_name_of_adapter(dir);
  if (base.empty() || base.size() > kMaxPath) return "";
  if (fs::path(base).is_absolute()) {
    if (is_model(base)) return base;
    std::string moved = find_moved_base(FoldersAbove(dir), base);
    return moved.empty() ? find_snapshot_by_folder_name(base).value_or("") : moved;
  }
  std::string found = FoldersAbove(dir).find(base, is_model);
  if (!found.empty()) return found;
  return is_model(base) ? base : find_in_hub_cache(base).value_or("");
}

std::string find_directory(const std::string& option, const std::string& typed) {
  if (is_directory(typed) || is_gguf(typed)) return typed;
  if (file_exists(typed)) refuse_file(option, typed);
  if (const auto snapshot = find_in_hub_cache(typed)) return *snapshot;
  refuse_missing(option, typed);
}

std::string find_config_path(const std::string& option, const std::string& typed) {
  if (is_directory(typed)) {
    return is_adapter_directory(typed) ? find_model(typed).model : typed;
  }
  if (is_gguf(typed)) return typed;
  if (file_exists(typed)) {
    if (!typed.ends_with(".json") || file_name_of(typed) == "adapter_config.json") {
      refuse_file(option, typed);
    }
    return typed;
  }
  if (const auto snapshot = find_in_hub_cache(typed)) return *snapshot;
  if (is_hub_name(typed)) refuse_missing(option, typed);
  return typed;
}

ModelPath find_model(const std::string& typed) {
  const std::string dir = find_directory("model", typed);
  if (is_adapter_directory(dir)) {
    const std::string base = find_base_of_adapter(dir);
    if (base.empty()) refuse_adapter_without_base(dir);
    return {.model = base, .adapter = dir};
  }
  if (is_gguf(dir)) return {.model = dir};
  if (!file_exists(dir + "/config.json")) refuse_folder_without_config("model", dir);
  check_has_weights(typed, dir, dir != typed);
  return {.model = dir};
}

std::string without_served_name(const std::string& typed) {
  const size_t sign = typed.find('=');
  return sign == std::string::npos || file_exists(typed) ? typed : typed.substr(sign + 1);
}

std::string find_adapter(const std::string& named) {
  const std::string typed = without_served_name(named);
  const std::string dir = find_directory("adapter", typed);
  if (is_adapter_directory(dir)) return dir;
  if (file_exists(dir + "/config.json") && !file_exists(dir + "/adapter_config.json")) {
    refuse(ErrorCode::kInvalidArgument, "adapter", typed,
           "this is a model, want a LoRA adapter (adapter_config.json, adapter_model.safetensors); "
           "a model goes behind --model");
  }
  if (file_exists(dir + "/adapter_config.json")) return dir;
  if (is_gguf(dir)) {
    refuse(ErrorCode::kInvalidArgument, "adapter", typed,
           fmt::format("this is a file in GGUF; {}; adapters in GGUF are llama.cpp's",
                       kWantedAdapter));
  }
  refuse(ErrorCode::kInvalidArgument, "adapter", typed,
         "a directory without adapter_config.json; want a LoRA adapter as PEFT saves it");
}

}  // namespace strata::apps
