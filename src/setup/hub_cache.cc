// SPDX-License-Identifier: Apache-2.0
#include "setup/hub_cache.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/ascii.h"
#include "base/env.h"
#include "base/files.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModels = "models--";
constexpr std::string_view kDatasets = "datasets--";
constexpr std::string_view kSnapshots = "snapshots";
constexpr size_t kMostNameBytes = 96;

bool is_ascii_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_hub_name_part(std::string_view part) {
  if (part.empty() || part.size() > kMostNameBytes) return false;
  const auto ends_word = [](char c) { return is_ascii_alnum(c) || c == '_'; };
  if (!ends_word(part.front()) || !ends_word(part.back())) return false;
  for (const char c : part) {
    if (!is_ascii_alnum(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos;
}

// The name of a snapshot: what a file of the cache says is a part of a path, so no more than that.
bool is_revision(std::string_view text) {
  for (const char c : text) {
    if (!is_ascii_alnum(c) && c != '-' && c != '_') return false;
  }
  return !text.empty() && text.size() <= kMostNameBytes;
}

bool is_folder(const fs::path& path) {
  std::error_code fault;
  return fs::is_directory(path, fault);
}

std::optional<std::string> find_only_snapshot(const fs::path& snapshots) {
  std::error_code fault;
  std::vector<std::string> found;
  for (fs::directory_iterator it(snapshots, fault), end; !fault && it != end; it.increment(fault)) {
    if (is_folder(it->path())) found.push_back(it->path().string());
    if (found.size() > 1) break;
  }
  return found.size() == 1 ? std::optional(found[0]) : std::nullopt;
}

std::optional<std::string> find_snapshot_in(const fs::path& model) {
  constexpr int64_t kMaxRefBytes = 4096;
  const fs::path snapshots = model / kSnapshots;
  const fs::path ref = model / "refs" / "main";
  std::error_code fault;
  if (!fs::exists(ref, fault)) return find_only_snapshot(snapshots);
  if (!fs::is_regular_file(ref, fault) || fs::file_size(ref, fault) > kMaxRefBytes) return {};
  const std::string revision(trimmed(read_file(ref.string(), kMaxRefBytes)));
  const fs::path snapshot = snapshots / revision;
  return is_revision(revision) && is_folder(snapshot) ? std::optional(snapshot.string())
                                                      : std::nullopt;
}

}  // namespace

bool is_hub_name(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && is_hub_name_part(text.substr(0, slash)) &&
         is_hub_name_part(text.substr(slash + 1));
}

std::optional<std::string> find_in_hub_cache(const std::string& name, HubKind kind) {
  if (!is_hub_name(name)) return std::nullopt;
  const size_t slash = name.find('/');
  const std::string folder = fmt::format("{}{}--{}", kind == HubKind::kModel ? kModels : kDatasets,
                                         name.substr(0, slash), name.substr(slash + 1));
  for (const std::string& cache : env_hub_caches()) {
    if (auto snapshot = find_snapshot_in(fs::path(cache) / folder)) return snapshot;
  }
  return std::nullopt;
}

std::string hub_name_of_snapshot(const std::string& dir) {
  const fs::path snapshots = fs::path(dir).parent_path();
  const std::string folder = snapshots.parent_path().filename().string();
  if (snapshots.filename() != kSnapshots) return "";
  const std::string name = hub_name_of_cache_folder(folder);
  return is_hub_name(name) ? name : "";
}

std::string hub_name_of_cache_folder(const std::string& folder) {
  const size_t dashes = folder.find("--", kModels.size());
  if (!folder.starts_with(kModels) || dashes == std::string::npos) return "";
  return fmt::format("{}/{}", folder.substr(kModels.size(), dashes - kModels.size()),
                     folder.substr(dashes + 2));
}

std::string how_to_get(const std::string& name) {
  return fmt::format("to get it: hf download {0} (or strata pull {0})", name);
}

}  // namespace strata::apps
