// SPDX-License-Identifier: Apache-2.0
#include "setup/dataset_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "data/sources.h"
#include "setup/hub_cache.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& option, const std::string& name,
                         const std::string& what) {
  throw Error(ErrorCode::kNotFound, fmt::format("--{}: {}: {}", option, name, what));
}

struct Found {
  std::vector<fs::path> files;
  std::optional<fs::path> parquet;  // one of them
};

Found find_files(const std::string& snapshot) {
  Found found;
  std::error_code fault;
  for (fs::recursive_directory_iterator it(snapshot, fault), end; !fault && it != end;
       it.increment(fault)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    const bool is_about = name.starts_with("dataset_info");  // dataset_infos.json
    if (is_about || name.starts_with('.') || !it->is_regular_file(ignored)) continue;
    if (name.ends_with(".parquet")) found.parquet = it->path();
    if (data::is_data_file_name(name)) found.files.push_back(it->path());
  }
  std::ranges::sort(found.files);
  return found;
}

// The files whose names say train, or all where none does.
std::vector<fs::path> training_part(std::vector<fs::path> files) {
  const auto is_other = [](const fs::path& file) {
    return file.filename().string().find("train") == std::string::npos;
  };
  if (!std::ranges::all_of(files, is_other)) std::erase_if(files, is_other);
  return files;
}

// The data set's files; an Error where it is not clear which.
std::vector<fs::path> choose_files(const std::string& option, const std::string& name,
                                   const std::string& snapshot) {
  const Found found = find_files(snapshot);
  if (found.files.empty() && found.parquet) {
    refuse(option, name,
           fmt::format("this data set has Parquet alone, which is not read; `strata pull --dataset "
                       "{}` makes JSONL of it",
                       name));
  }
  const std::vector<fs::path> files = training_part(found.files);
  std::set<std::string> folders;
  for (const fs::path& file : files) folders.insert(file.parent_path().string());
  if (folders.size() == 1) return files;
  refuse(option, name,
         folders.empty() ? fmt::format("no files of data in {}", snapshot)
                         : fmt::format("this data set has files in several folders; give one of "
                                       "them: {}",
                                       fmt::join(folders, ", ")));
}

// The name and its weight, as ":2" or empty; nothing where the text is no name of the hub.
struct Named {
  std::string name, weight;
};
std::optional<Named> parse_name(const std::string& text) {
  const size_t colon = std::min(text.rfind(':'), text.size());
  Named named = {text.substr(0, colon), text.substr(colon)};
  if (file_exists(text) || file_exists(named.name) || !is_hub_name(named.name)) return {};
  return named;
}

// Whether it is rather a file that is not there.
bool looks_like_file(const std::string& name) {
  return data::is_data_file_name(name) || name.ends_with(".parquet");
}

}  // namespace

std::vector<std::string> resolve_data_names(const std::string& option,
                                            const std::vector<std::string>& texts) {
  std::vector<std::string> out;
  for (const std::string& text : texts) {
    const std::optional<Named> named = parse_name(text);
    if (!named || looks_like_file(named->name)) {
      out.push_back(text);
      continue;
    }
    const std::optional<std::string> snapshot = find_in_hub_cache(named->name, HubKind::kDataset);
    if (!snapshot) {
      refuse(option, named->name,
             fmt::format("no such file, and no data set of this name in the cache of the hub; to "
                         "get it: hf download --repo-type dataset {0} (or strata pull --dataset "
                         "{0})",
                         named->name));
    }
    for (const fs::path& file : choose_files(option, named->name, *snapshot))
      out.push_back(file.string() + named->weight);
  }
  return out;
}

}  // namespace strata::apps
