// SPDX-License-Identifier: Apache-2.0
// A registry of checkpoints over SQLite and real files, whose database fails on demand.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/store/checkpoints/registry.h"
#include "tests/base/temp_dir.h"
#include "tests/server/store/state/faulty_sql.h"

namespace strata::server {

using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;

class Registry : public ::testing::Test {
 protected:
  Registry() { open(1000); }

  void open(double now, int64_t max_disk = 0, bool accept_loss = false) {
    registry_.reset();
    store_.reset();
    data_.reset();
    data_ = std::make_unique<DataDir>(dir_.path() + "/data");
    store_ = std::make_unique<StateStore>(
        std::make_unique<FaultySql>(open_sqlite(data_->database()), faults_), now);
    registry_ = std::make_unique<CheckpointRegistry>(
        *data_, *store_, RegistryOptions{.max_disk = max_disk, .accept_loss = accept_loss});
  }

  CheckpointSave save(const std::string& name, CheckpointKind kind = CheckpointKind::kWeights) {
    CheckpointSave out;
    out.path = {"s:train:0", kind, name};
    out.tenant = "alice";
    out.base_model = "base";
    return out;
  }
  CheckpointRow finish(const CheckpointSave& save, double now = 1000,
                       const std::string& content = "weights") {
    const std::string dir = registry_->begin_save();
    write_bytes(dir + "/adapter_model.safetensors", content);
    write_bytes(dir + "/adapter_config.json", "{}");
    return registry_->finish_save(dir, save, now);
  }
  std::string adapter(const CheckpointRow& row) {
    return read_bytes(registry_->folder(row) + "/adapter_model.safetensors");
  }

  TempDir dir_;
  std::shared_ptr<SqlFaults> faults_ = std::make_shared<SqlFaults>();
  std::unique_ptr<DataDir> data_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<CheckpointRegistry> registry_;
};

}  // namespace strata::server
