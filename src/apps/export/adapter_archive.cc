// SPDX-License-Identifier: Apache-2.0
#include "apps/export/adapter_archive.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/tar.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWanted[] = {"adapter_config.json", "adapter_model.safetensors"};
constexpr size_t kMostFiles = 1000;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--adapter: {}: {}", path, what));
}

bool is_wanted(std::string_view name) { return name == kWanted[0] || name == kWanted[1]; }

std::string make_temporary_folder() {
  std::string name = fs::temp_directory_path().string() + "/strata-adapter-XXXXXX";
  if (::mkdtemp(name.data()) != nullptr) return name;
  throw Error(ErrorCode::kIo, fmt::format("{}: create: {}", name, std::strerror(errno)));
}

// Notes a file's name of the archive; refuses folders, too many files and a second of a name.
void claim_name(const std::string& path, const std::string& name, std::set<std::string>& names) {
  if (name.empty() || name.find('/') != std::string::npos || names.size() >= kMostFiles) {
    refuse(path, fmt::format("holds '{}': the archive of a checkpoint has files alone, and few",
                             name.substr(0, 200)));
  }
  if (!names.insert(name).second) refuse(path, fmt::format("holds '{}' twice", name));
}

void check_is_adapter(const std::string& path, const std::set<std::string>& names) {
  if (names.contains("config.json")) {
    refuse(path, "is an archive of a merged model: it has its adapter already; unpack it");
  }
  for (const std::string_view name : kWanted) {
    if (names.contains(std::string(name))) continue;
    refuse(path,
           fmt::format("has no {}; want the archive of a checkpoint of strata serve, or a PEFT "
                       "directory",
                       name));
  }
}

// Removes the folder where what follows throws.
struct Folder {
  std::string path;
  ~Folder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

}  // namespace

AdapterArchive::AdapterArchive(const std::string& path) {
  Folder folder{make_temporary_folder()};
  dir_ = folder.path;
  unpack_adapter(path);
  folder.path.clear();
}

AdapterArchive::~AdapterArchive() {
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

void AdapterArchive::unpack_adapter(const std::string& path) const {
  TarReader tar(path);
  std::set<std::string> names;
  while (const auto entry = tar.next()) {
    claim_name(path, entry->name, names);
    if (!is_wanted(entry->name)) continue;
    AtomicFile file(fmt::format("{}/{}", dir_, entry->name));
    tar.read(*entry, [&](std::string_view piece) { file.append(piece); });
    file.commit();
  }
  check_is_adapter(path, names);
}

}  // namespace strata::apps
