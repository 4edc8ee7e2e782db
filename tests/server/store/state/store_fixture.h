// SPDX-License-Identifier: Apache-2.0
// A state store over SQLite and over a real PostgreSQL: tests of Store run with both.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/store/state/store.h"
#include "server/store/state/store_lists.h"
#include "tests/base/temp_dir.h"
#include "tests/server/store/state/faulty_sql.h"
#include "tests/server/store/state/test_postgres.h"

namespace strata::server {

using strata::testing::TempDir;
using strata::testing::TestPostgres;

class Store : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!is_sqlite()) {
      if (TestPostgres::shared() == nullptr) {
        GTEST_SKIP() << "postgresql-15 is not installed: tools/install.sh test";
      }
      TestPostgres::shared()->reset();
    }
    open(1000);
  }

  [[nodiscard]] bool is_sqlite() const { return std::string_view(GetParam()) == "sqlite"; }
  std::unique_ptr<Sql> connect() {
    return is_sqlite() ? open_sqlite(dir_.file("strata.db"))
                       : open_postgres(TestPostgres::shared()->url());
  }
  // Over a connection of its own.
  [[nodiscard]] StoreLists lists() const {
    return StoreLists(is_sqlite() ? open_sqlite_reader(dir_.file("strata.db"))
                                  : open_postgres_reader(TestPostgres::shared()->url()));
  }
  void open(double now) {
    store_.reset();
    store_ = std::make_unique<StateStore>(connect(), now);
  }

  SessionRow session(const std::string& id, const std::string& tenant = "alice") {
    SessionRow row;
    row.id = id;
    row.tenant = tenant;
    row.created_at = 1000;
    store_->ensure_session(row, {});
    return row;
  }
  RunRow add_run(const std::string& session_id, int64_t model_seq,
                 const std::string& tenant = "alice") {
    RunRow row;
    row.id = session_id + ":train:" + std::to_string(model_seq);
    row.tenant = tenant;
    row.session_id = session_id;
    row.model_seq = model_seq;
    row.created_at = row.last_request_at = 1000;
    row.base_model = "base";
    row.lora = {.rank = 8, .seed = ~0ULL, .train_attn = true, .train_mlp = false};
    EXPECT_TRUE(store_->add_run(row));
    return row;
  }
  // In so many batches.
  int set_project(const std::string& session_id, const std::string& project_id) {
    int count = 1;
    for (int64_t last = -1; store_->set_project_batch(session_id, project_id, last);) ++count;
    return count;
  }
  CheckpointRow add_checkpoint(const std::string& run, const std::string& name,
                               std::optional<double> expires_at = std::nullopt,
                               CheckpointKind kind = CheckpointKind::kWeights,
                               const std::string& tenant = "alice") {
    CheckpointRow row;
    row.id = "id" + std::to_string(++count_);
    row.run_id = run;
    row.tenant = tenant;
    row.kind = kind;
    row.name = name;
    row.created_at = 1000 + count_;
    row.size_bytes = 100;
    row.expires_at = expires_at;
    row.base_model = "base";
    store_->upsert_checkpoint(row);
    return row;
  }

  TempDir dir_;
  std::unique_ptr<StateStore> store_;
  int count_ = 0;
};

}  // namespace strata::server
