// SPDX-License-Identifier: Apache-2.0
// Copies of checkpoints, and what they meet.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/server/store/checkpoints/registry_fixture.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;
using strata::testing::error_of;
using ::testing::HasSubstr;

class Copies : public Registry {
 protected:
  static RunRow run_of(int64_t number) {
    RunRow run;
    run.id = "s:train:" + std::to_string(number);
    run.session_id = "s";
    run.model_seq = number;
    run.tenant = "alice";
    return run;
  }
};

TEST_F(Copies, AModelThatIsMadeOfTheirNumberMeanwhileKeepsIt) {
  const CheckpointRow row = finish(save("a"));
  faults_->before_begin = [&] {
    open_sqlite(data_->database())
        ->run(
            "INSERT INTO runs (id, tenant, number, created_at, last_request_at, base_model, "
            "lora, project_id, state) "
            "VALUES ('s:train:7', 'alice', 99, 1, 1, 'base', '{}', 'default', 'live')",
            {});
  };
  EXPECT_THAT(error_of([&] { registry_->copy_to_new_run(row, run_of(7), {}, {}, 1000); }),
              HasSubstr("model_seq_id: 7 of session s is in use"));
  EXPECT_EQ(store_->find_run("s:train:7")->state, RunState::kLive);
  EXPECT_EQ(store_->stored_bytes(), row.size_bytes);
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
  open(2000);
  EXPECT_FALSE(fs::exists(data_->lost()));  // it left no folder that nobody knows
}

// Clients send again what a full disk refused; this stays refused until somebody deletes something.
TEST_F(Copies, BeyondTheDisksLimitAreRefusedForGood) {
  const CheckpointRow row = finish(save("a"));
  open(2000, row.size_bytes + 10);
  try {
    registry_->copy_to_new_run(row, run_of(7), {}, {}, 2000);
    FAIL() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);  // 400
    EXPECT_THAT(error.what(), HasSubstr("--max-disk"));
  }
  EXPECT_FALSE(store_->find_run("s:train:7"));
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
}

// The row may be there all the same, and then its files must be.
TEST_F(Copies, OneWhoseCommitIsNotAnsweredKeepsItsFiles) {
  const CheckpointRow row = finish(save("a"));
  faults_->commit_lost = true;
  EXPECT_EQ(registry_->copy_to_new_run(row, run_of(7), {}, {}, 1000),
            "tinker://s:train:7/weights/a");
  const auto copied = store_->find_checkpoint("s:train:7", CheckpointKind::kWeights, "a", 1000);
  ASSERT_TRUE(copied);
  EXPECT_EQ(adapter(*copied), "weights");
}

}  // namespace
}  // namespace strata::server
