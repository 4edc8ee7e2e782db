// SPDX-License-Identifier: Apache-2.0
// The sums that the store keeps are those of its rows, whatever was done and whatever failed.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/server/store/state/store_fixture.h"

namespace strata::server {
namespace {

class StoredBytesTest : public Store {
 protected:
  void SetUp() override {
    Store::SetUp();
    if (IsSkipped()) return;
    reopen();
    reader_ = is_sqlite() ? open_sqlite_reader(dir_.file("strata.db"))
                          : open_postgres_reader(TestPostgres::shared()->url());
    for (const char* tenant : kTenants) {
      session(tenant, tenant);
      add_run(tenant, 0, tenant);
    }
  }
  void reopen() {
    store_.reset();
    store_ = std::make_unique<StateStore>(std::make_unique<FaultySql>(connect(), faults_), now_);
  }

  // As the rows say.
  int64_t summed(const std::string& tenant) {
    const SqlValue value = tenant;
    const SqlResult sum = reader_->run(
        "SELECT CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM checkpoints WHERE "
        "tenant = ? AND files_gone = 0",
        {&value, 1});
    return std::get<int64_t>(sum.rows[0][0]);
  }
  void expect_sums(int step) {
    int64_t all = 0;
    for (const char* tenant : kTenants) {
      EXPECT_EQ(store_->stored_bytes(tenant), summed(tenant)) << tenant << ", step " << step;
      all += summed(tenant);
    }
    EXPECT_EQ(store_->stored_bytes(), all) << "step " << step;
  }

  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  CheckpointRow row_of(const std::string& tenant) {
    CheckpointRow row;
    row.id = "c" + std::to_string(++count_);
    row.run_id = tenant + ":train:0";
    row.tenant = tenant;
    row.name = "n" + std::to_string(draw(4));
    row.created_at = ++now_;
    row.size_bytes = draw(1000);
    row.base_model = "base";
    if (draw(2) == 0) row.expires_at = now_ + draw(50);
    ids_.push_back(row.id);
    return row;
  }
  void copy_into_a_run(CheckpointRow row) {
    RunRow run;
    run.id = row.run_id = "copy" + std::to_string(count_);
    run.tenant = row.tenant;
    run.base_model = "base";
    run.state = RunState::kCopy;
    EXPECT_TRUE(store_->add_copy(run, row, {.name = "key" + std::to_string(count_)}));
  }
  void step() {
    const std::string tenant = kTenants[draw(2)];
    const std::string id = ids_.empty() ? "none" : ids_[static_cast<size_t>(draw(count_))];
    switch (draw(9)) {
      case 0:
      case 1:
        return store_->upsert_checkpoint(row_of(tenant));
      case 2:
        return copy_into_a_run(row_of(tenant));
      case 3:
        store_->delete_checkpoint(id, now_);
        return;
      case 4:
        return store_->expire(id);
      case 5:
        for (const CheckpointRow& row : store_->find_collectable(now_).rows)
          store_->mark_files_gone(row.id);
        return;
      case 6:
        return store_->forget_checkpoint(id);
      case 7:
        return store_->mark_files_gone(id);  // also of one whose files were gone, or that never was
      default:
        store_->prune_old_rows(now_ + 8 * 86400);
        while (store_->prune_history(now_, 1)) {
        }
    }
  }

  static constexpr const char* kTenants[] = {"alice", "bob"};
  std::shared_ptr<SqlFaults> faults_ = std::make_shared<SqlFaults>();
  std::unique_ptr<Sql> reader_;
  std::mt19937 random_{7};
  std::vector<std::string> ids_;
  double now_ = 2000;
};

INSTANTIATE_TEST_SUITE_P(Databases, StoredBytesTest, ::testing::Values("sqlite", "postgresql"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StoredBytesTest, AreThoseOfTheRowsAfterWhateverWasDone) {
  for (int i = 0; i < 300; ++i) {
    // Of a commit that fails nobody knows whether it was done: here it was, or it was not.
    faults_->commit_lost = draw(8) == 0;
    faults_->statement = draw(8) == 0 ? "COMMIT" : "";
    try {
      step();
    } catch (const Error&) {
    }
    faults_->commit_lost = false;
    faults_->statement = "";
    if (draw(20) == 0) reopen();
    expect_sums(i);
  }
}

// What every save asks adds up no rows: they may be many, and it holds up everybody.
TEST_P(StoredBytesTest, AskNoDatabase) {
  store_->upsert_checkpoint(row_of("alice"));
  const int64_t bytes = summed("alice");
  reopen();
  faults_->away = true;
  EXPECT_EQ(store_->stored_bytes("alice"), bytes);
  EXPECT_EQ(store_->stored_bytes("nobody"), 0);
  EXPECT_EQ(store_->stored_bytes(), bytes);
}

}  // namespace
}  // namespace strata::server
