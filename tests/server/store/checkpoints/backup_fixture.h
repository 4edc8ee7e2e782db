// SPDX-License-Identifier: Apache-2.0
// A data directory in use, with two checkpoints: what backups are made of, and damaged in.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "base/crypto.h"
#include "base/files.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/tar.h"
#include "server/store/checkpoints/backup.h"
#include "server/store/checkpoints/check.h"
#include "server/store/checkpoints/record.h"
#include "server/store/checkpoints/registry.h"
#include "tests/base/temp_dir.h"

namespace strata::server {

namespace fs = std::filesystem;
using strata::testing::error_of;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;

inline void flip(const std::string& path, size_t at) {
  std::string bytes = read_bytes(path);
  ASSERT_LT(at, bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_bytes(path, bytes);
}

class Backup : public ::testing::Test {
 protected:
  Backup()
      : data_(std::make_unique<DataDir>(dir_.path() + "/data")),
        store_(std::make_unique<StateStore>(open_sqlite(data_->database()), 1000)),
        registry_(std::make_unique<CheckpointRegistry>(*data_, *store_, RegistryOptions{})) {
    for (const char* name : {"a", "b"}) rows_.push_back(save(name));
    SessionRow session;
    session.id = "s";
    session.tenant = "alice";
    store_->ensure_session(session, {});
  }

  CheckpointRow save(const std::string& name) {
    const std::string dir = registry_->begin_save();
    SafetensorsWriter writer(dir + "/adapter_model.safetensors", {{"w", DType::kF32, {4}}});
    const float values[] = {1, 2, 3, static_cast<float>(rows_.size())};
    writer.append("w", std::as_bytes(std::span(values)));
    writer.commit();
    write_bytes(dir + "/adapter_config.json", "{}");
    CheckpointSave out;
    out.path = {"s:train:0", CheckpointKind::kWeights, name};
    out.tenant = "alice";
    out.base_model = "base";
    out.lora.rank = 8;
    return registry_->finish_save(dir, out, 1000);
  }
  void close() {
    registry_.reset();
    store_.reset();
    data_.reset();
  }
  [[nodiscard]] std::string data() const { return dir_.path() + "/data"; }
  [[nodiscard]] std::string tar() const { return dir_.file("backup.tar"); }
  [[nodiscard]] std::string restored() const { return dir_.path() + "/restored"; }
  [[nodiscard]] std::string folder(size_t i) const {
    return data() + "/checkpoints/alice/s:train:0/weights/" + rows_[i].id;
  }
  std::vector<std::string> damages() { return check_data(data()).damages; }
  // A backup with hashes that fit, of the files of `kept` and the database of data(), whatever that
  // says; with another secret where one is given.
  void repack(const std::string& kept, const std::optional<std::string>& secret = {}) const {
    fs::remove(tar());
    TarWriter writer(tar());
    std::string manifest;
    const auto add = [&](const std::string& name, const std::string& content) {
      manifest += to_hex(writer.add(name, content, 0)) + "  " + name + "\n";
    };
    for (const auto& entry : fs::recursive_directory_iterator(kept + "/checkpoints")) {
      if (entry.is_regular_file())
        add(entry.path().string().substr(kept.size() + 1), read_bytes(entry.path().string()));
    }
    if (!secret) add("secret", read_bytes(kept + "/secret"));
    if (secret && !secret->empty()) add("secret", *secret);
    open_sqlite(data() + "/strata.db")->run("PRAGMA journal_mode=DELETE", {});
    add("strata.db", read_bytes(data() + "/strata.db"));
    writer.add("MANIFEST", manifest, 0);
    writer.commit();
  }

  TempDir dir_;
  std::unique_ptr<DataDir> data_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<CheckpointRegistry> registry_;
  std::vector<CheckpointRow> rows_;
};

}  // namespace strata::server
