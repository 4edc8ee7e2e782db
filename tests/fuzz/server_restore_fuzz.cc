// SPDX-License-Identifier: Apache-2.0
// A backup whose files have any content, with hashes that fit: restoring refuses it and leaves
// nothing, or a server starts with what it made, ends its sessions and sweeps. Every other input
// changes the list of files too.
#include <filesystem>

#include "base/check.h"
#include "base/crypto.h"
#include "base/error.h"
#include "checkpoint/tar.h"
#include "server/store/checkpoints/backup.h"
#include "tests/fuzz/data_seed.h"
#include "tests/fuzz/fuzz_dir.h"

namespace {

namespace server = strata::server;

constexpr double kYears = 1e10;  // all that ever ended is old

void pack(const std::string& path, strata::fuzz::Files& files, std::span<const uint8_t> edits) {
  std::filesystem::remove(path);
  strata::TarWriter tar(path);
  std::string list;
  for (const auto& [name, bytes] : files) {
    list += strata::to_hex(tar.add(name, bytes, 0)) + "  " + name + "\n";
  }
  strata::fuzz::Files manifest = {{"strata.db", list}};
  strata::fuzz::edit(manifest, edits);
  tar.add("MANIFEST", manifest.at("strata.db"), 0);
  tar.commit();
}

void start(const std::string& folder) {
  server::DataDir data(folder);
  server::StateStore store(server::open_sqlite(data.database()), 2000);
  server::CheckpointRegistry registry(data, store, {});
  for (const server::CheckpointRow& row : store.rows_with_files()) {
    CHECK(registry.folder(row).starts_with(folder + "/checkpoints/"), registry.folder(row));
  }
  // What is silent ends, and sweeps go over all that ended: what they throw is a finding.
  for (const auto& [session, tenant] : store.read_active_sessions())
    store.end_session(session, "timed_out", "no heartbeat", "", 3000);
  registry.sweep(3000, 0);
  registry.sweep(kYears, 1e6);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const strata::fuzz::FuzzDir dir;
  static const strata::fuzz::Files seed = strata::fuzz::data_seed(dir.path() + "/seed");
  if (size == 0) return 0;
  const std::span<const uint8_t> edits(data + 1, size - 1);
  const bool changes_list = data[0] % 2 == 1;
  strata::fuzz::Files files = seed;
  strata::fuzz::edit(files, edits.first(changes_list ? edits.size() / 2 : edits.size()));
  const std::string tar = dir.path() + "/tar", out = dir.path() + "/out/data";
  pack(tar, files, changes_list ? edits.subspan(edits.size() / 2) : edits.first(0));
  std::filesystem::remove_all(dir.path() + "/out");
  std::filesystem::create_directories(dir.path() + "/out");
  try {
    server::restore(tar, out);
  } catch (const strata::Error&) {
    CHECK(std::filesystem::is_empty(dir.path() + "/out"), "a refused backup left something");
    return 0;
  }
  start(out);
  return 0;
}
