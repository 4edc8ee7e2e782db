// SPDX-License-Identifier: Apache-2.0
// DataSeed: a server's data directory with one checkpoint, to be damaged by an input: the input is
// a list of edits, four bytes each: which file, where (two bytes, as a part of the file), and the
// byte to put there.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/safetensors_writer.h"
#include "server/store/checkpoints/data_dir.h"
#include "server/store/checkpoints/registry.h"
#include "server/store/state/store.h"

namespace strata::fuzz {

using Files = std::map<std::string, std::string>;  // by path below the directory

// All files below a folder.
inline Files read_files(const std::string& folder) {
  Files out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = entry.path().string();
    out[path.substr(folder.size() + 1)] = read_file(path, 1 << 24);
  }
  return out;
}

inline Files data_seed(const std::string& folder) {
  namespace server = strata::server;
  {
    server::DataDir data(folder);
    server::StateStore store(server::open_sqlite(data.database()), 1000);
    server::CheckpointRegistry registry(data, store, {});
    server::SessionRow session;
    session.id = "s";
    session.tenant = "alice";
    store.ensure_session(session, {});
    const std::string dir = registry.begin_save();
    SafetensorsWriter writer(dir + "/adapter_model.safetensors", {{"w", DType::kF32, {4}}});
    const float values[] = {1, 2, 3, 4};
    writer.append("w", std::as_bytes(std::span(values)));
    writer.commit();
    write_file_atomic(dir + "/adapter_config.json", "{}");
    server::CheckpointSave save;
    save.path = {"s:train:0", server::CheckpointKind::kWeights, "a"};
    save.tenant = "alice";
    save.base_model = "base";
    save.lora.rank = 8;
    registry.finish_save(dir, save, 1000);
    server::open_sqlite(data.database())->run("PRAGMA wal_checkpoint(TRUNCATE)", {});
  }
  server::open_sqlite(folder + "/strata.db")->run("PRAGMA journal_mode=DELETE", {});
  return read_files(folder);
}

inline void edit(Files& files, std::span<const uint8_t> edits) {
  for (size_t at = 0; at + 4 <= edits.size(); at += 4) {
    // Half of the edits are of the database, which has the most to be wrong.
    auto file = files.find("strata.db");
    if (edits[at] >= 128) file = std::next(files.begin(), edits[at] % std::ssize(files));
    std::string& bytes = file->second;
    if (bytes.empty()) continue;
    const size_t where = (size_t{edits[at + 1]} << 8 | edits[at + 2]) * bytes.size() >> 16;
    bytes[where] = static_cast<char>(edits[at + 3]);
  }
}

}  // namespace strata::fuzz
