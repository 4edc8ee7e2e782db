// SPDX-License-Identifier: Apache-2.0
// A data directory with any damage: what check_data() calls whole, a server starts with.
#include <filesystem>

#include "base/check.h"
#include "base/error.h"
#include "server/store/checkpoints/check.h"
#include "tests/fuzz/data_seed.h"
#include "tests/fuzz/fuzz_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace server = strata::server;
  static const strata::fuzz::FuzzDir dir;
  static const strata::fuzz::Files seed = strata::fuzz::data_seed(dir.path() + "/seed");
  const std::string folder = dir.path() + "/data";
  std::filesystem::remove_all(folder);
  strata::fuzz::Files files = seed;
  strata::fuzz::edit(files, {data, size});
  for (const auto& [name, bytes] : files) {
    std::filesystem::create_directories(std::filesystem::path(folder + "/" + name).parent_path());
    dir.write("data/" + name, bytes);
  }
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  const server::CheckReport report = server::check_data(folder);
  if (!report.damages.empty()) return 0;
  server::DataDir whole(folder);
  server::StateStore store(server::open_sqlite(whole.database()), 2000);
  server::CheckpointRegistry registry(whole, store, {});
  for (const server::CheckpointRow& row : store.rows_with_files()) {
    CHECK(registry.folder(row).starts_with(folder + "/checkpoints/"), registry.folder(row));
  }
  return 0;
}
