// SPDX-License-Identifier: Apache-2.0
// Backup, restore and check of a directory that is in use, and every damage by name.
#include "server/store/checkpoints/backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "base/stop.h"
#include "tests/server/store/checkpoints/backup_fixture.h"
#include "tests/server/store/state/read_lists.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Backup, ADirectoryInUseComesBackWhole) {
  const BackupCounts counts = back_up(data(), tar());
  EXPECT_EQ(counts.checkpoints, 2);
  struct stat info = {};
  ASSERT_EQ(::stat(tar().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u) << "it holds the secret";
  save("later");  // is in the directory alone
  EXPECT_EQ(restore(tar(), restored()).bytes, counts.bytes);
  EXPECT_THAT(check_data(restored()).damages, IsEmpty());
  EXPECT_THAT(dir_.names(), ElementsAre("backup.tar", "data", "restored"));
  ASSERT_EQ(::stat((restored() + "/secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  const int64_t boot = store_->boot();
  close();
  DataDir dir(restored());
  StateStore store(open_sqlite(dir.database()), 2000);
  CheckpointRegistry registry(dir, store, {});
  EXPECT_GT(store.boot(), boot + 1000) << "ids of before name nothing new";
  EXPECT_TRUE(store.find_session("s").has_value());
  EXPECT_EQ(strata::testing::checkpoints_of(dir.database(), "s:train:0", 2000).size(), 2u);
  for (const CheckpointRow& row : rows_) {
    EXPECT_EQ(read_bytes(registry.folder(row) + "/adapter_model.safetensors"),
              read_bytes(data() + registry.folder(row).substr(restored().size()) +
                         "/adapter_model.safetensors"));
  }
}

TEST_F(Backup, AKeyTellsWhoMadeIt) {
  const std::string key(32, 'k'), other(32, 'o');
  back_up(data(), tar(), key);
  EXPECT_EQ(check_backup(tar(), key).checkpoints, 2);
  EXPECT_EQ(check_backup(tar()).checkpoints, 2) << "without a key nobody asks who made it";
  EXPECT_THAT(error_of([&] { check_backup(tar(), other); }), HasSubstr("made with another key"));
  EXPECT_THAT(error_of([&] { restore(tar(), restored(), other); }),
              HasSubstr("made with another key"));
  EXPECT_FALSE(fs::exists(restored()));
  restore(tar(), restored(), key);
  EXPECT_THAT(check_data(restored()).damages, IsEmpty());
  // The same files with hashes that fit, by who has not the key.
  fs::remove_all(restored());
  close();
  repack(data());
  EXPECT_THAT(error_of([&] { restore(tar(), restored(), key); }),
              HasSubstr("not authenticated: it was made without --archive-key"));
  EXPECT_THAT(dir_.names(), ElementsAre("backup.tar", "data"));
}

TEST_F(Backup, AnArchiveWhoseListWasChangedIsRefusedByItsKey) {
  const std::string key(40, 'k');
  back_up(data(), tar(), key);
  const std::string whole = read_bytes(tar());
  const size_t list = whole.rfind("  strata.db\n"), sum = whole.rfind("MANIFEST.hmac");
  ASSERT_TRUE(list != std::string::npos && sum != std::string::npos);
  for (const size_t at : {list - 1, sum + 512, sum + 512 + 63}) {
    std::string changed = whole;
    changed[at] = changed[at] == '0' ? '1' : '0';
    write_bytes(tar(), changed);
    EXPECT_THAT(error_of([&] { check_backup(tar(), key); }), HasSubstr("it was changed")) << at;
  }
}

TEST_F(Backup, KeysOfArchivesAreLongEnough) {
  const std::string path = dir_.file("key");
  write_bytes(path, std::string(64, 'a') + "\r\n");
  EXPECT_EQ(read_archive_key(path), std::string(64, 'a'));
  for (const size_t size : {0, 31, 4097}) {
    write_bytes(path, std::string(size, 'a'));
    EXPECT_THAT(error_of([&] { read_archive_key(path); }), HasSubstr("--archive-key"));
  }
}

// Between the snapshot and its copy: the row is dead, its files are gone, and nobody noted it yet.
TEST_F(Backup, WhatIsDeletedMeanwhileIsNoDamage) {
  store_->delete_checkpoint(rows_[0].id, 1000);
  fs::remove_all(folder(0));
  EXPECT_THAT(damages(), IsEmpty());
  EXPECT_EQ(back_up(data(), tar()).checkpoints, 1);
  restore(tar(), restored());
  EXPECT_THAT(check_data(restored()).damages, IsEmpty());
}

// A sweep that is half through has removed any of the files.
TEST_F(Backup, AFolderThatLacksAFileIsNotCopied) {
  fs::remove(folder(0) + "/adapter_model.safetensors");
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }), HasSubstr("are not all there"));
  EXPECT_FALSE(fs::exists(tar()));
  store_->delete_checkpoint(rows_[0].id, 1000);
  EXPECT_EQ(back_up(data(), tar()).checkpoints, 1);
  restore(tar(), restored());
  EXPECT_THAT(check_data(restored()).damages, IsEmpty());
}

TEST_F(Backup, ARecordIsReadFromAFileThatIsGone) {
  const ReadOnlyFile file(folder(0) + "/strata.json");
  fs::remove_all(folder(0));
  EXPECT_EQ(read_record(file).path, "tinker://s:train:0/weights/a");
}

TEST_F(Backup, CheckNamesEachDamage) {
  const CheckReport whole = check_data(data());
  EXPECT_THAT(whole.damages, IsEmpty());
  EXPECT_THAT(whole.notes, IsEmpty());
  EXPECT_EQ(whole.checkpoints, 2);
  EXPECT_EQ(whole.unhashed, 0);
  const std::string adapter = folder(0) + "/adapter_model.safetensors";
  struct Case {
    const char* what;
    std::function<void()> damage;
    std::string names, says;
  };
  const Case cases[] = {
      {"a bit of a weight", [&] { flip(adapter, read_bytes(adapter).size() - 1); }, adapter,
       "not those that were saved"},
      {"a file that was cut", [&] { fs::resize_file(adapter, 20); }, adapter,
       "not those that were saved"},
      {"a file that is gone", [&] { fs::remove(adapter); }, adapter, "is missing"},
      {"the marker", [&] { fs::remove(folder(0) + "/checkpoint_complete"); }, folder(0),
       "checkpoint_complete"},
      {"the record", [&] { write_bytes(folder(0) + "/strata.json", "{"); },
       folder(0) + "/strata.json", "byte"},
      {"another's record",
       [&] {
         fs::copy_file(folder(1) + "/strata.json", folder(0) + "/strata.json",
                       fs::copy_options::overwrite_existing);
       },
       folder(0) + "/strata.json", "the database 'tinker://s:train:0/weights/a'"},
      {"the folder", [&] { fs::remove_all(folder(0)); }, folder(0), "not there or not whole"},
      {"the fingerprint", [&] { fs::remove(data() + "/checkpoints/fingerprint"); },
       data() + "/checkpoints/fingerprint", ""},
      {"another's secret", [&] { write_bytes(data() + "/secret", std::string(32, 'x')); },
       data() + "/strata.db", "belongs to another data directory"},
      {"a short secret", [&] { write_bytes(data() + "/secret", "x"); }, data() + "/secret",
       "1 bytes, want 32"},
      {"a database that is none",
       [&] { write_bytes(data() + "/strata.db", "not a database at all"); }, data() + "/strata.db",
       "not a database"},
  };
  close();
  const std::string kept = dir_.path() + "/kept";
  fs::copy(data(), kept, fs::copy_options::recursive);
  for (const Case& c : cases) {
    c.damage();
    const std::vector<std::string> found = damages();
    ASSERT_THAT(found, ::testing::Not(IsEmpty())) << c.what;
    EXPECT_THAT(found, ::testing::Contains(::testing::AllOf(HasSubstr(c.names), HasSubstr(c.says))))
        << c.what;
    fs::remove_all(data());
    fs::copy(kept, data(), fs::copy_options::recursive);
    EXPECT_THAT(damages(), IsEmpty()) << c.what;
  }
  EXPECT_THAT(error_of([] { check_data("/nowhere"); }), HasSubstr("no data directory"));
}

// A page of the database that was overwritten.
// As of a folder that is not mounted: some are told.
TEST_F(Backup, CheckStopsAtAThousandDamages) {
  close();
  open_sqlite(data() + "/strata.db")
      ->run(
          "INSERT INTO checkpoints (id, run_id, tenant, kind, name, number, created_at, "
          "size_bytes, "
          "is_public, base_model, lora, files_gone) WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL "
          "SELECT i + 1 FROM n WHERE i < 4999) SELECT printf('%032x', i), 'run', 'alice', "
          "'weights', 'n' || i, 100 + i, 1, 1, 0, 'b', '{\"rank\":8}', 0 FROM n",
          {});
  const std::vector<std::string> told = damages();
  ASSERT_EQ(told.size(), 1001U);
  EXPECT_THAT(told.back(), HasSubstr("more than 1000 damages"));
}

TEST_F(Backup, CheckFindsADamagedPageOfTheDatabase) {
  close();
  const std::string path = data() + "/strata.db";
  std::string bytes = read_bytes(path);
  constexpr size_t kPage = 4096;
  ASSERT_GT(bytes.size(), 4 * kPage);
  for (size_t at = 2 * kPage; at + kPage <= bytes.size(); at += kPage)
    bytes.replace(at, 64, std::string(64, '\x5a'));
  write_bytes(path, bytes);
  const std::vector<std::string> found = damages();
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0], HasSubstr("strata.db"));
}

TEST_F(Backup, OlderCheckpointsAreCheckedByTheirForm) {
  const std::string record = folder(0) + "/strata.json";
  std::string text = read_bytes(record);
  text.erase(text.find(",\"sha256\""), std::string::npos);
  write_bytes(record, text + "}\n");
  EXPECT_THAT(damages(), IsEmpty());
  EXPECT_EQ(check_data(data()).unhashed, 1);
  EXPECT_EQ(back_up(data(), tar()).checkpoints, 2);
  fs::resize_file(folder(0) + "/adapter_model.safetensors", 20);
  EXPECT_THAT(damages(), ::testing::Contains(HasSubstr("adapter_model.safetensors")));
}

TEST_F(Backup, ACopyHasTheHashesOfItsSource) {
  RunRow run;
  run.id = "copy:train:0";
  run.tenant = "bob";
  run.base_model = "base";
  run.lora.rank = 8;
  registry_->copy_to_new_run(rows_[0], run, std::nullopt, {}, 1000);
  const CheckReport report = check_data(data());
  EXPECT_THAT(report.damages, IsEmpty());
  EXPECT_EQ(report.checkpoints, 3);
  EXPECT_EQ(report.unhashed, 0);
}

TEST_F(Backup, AStrayIsANote) {
  fs::create_directories(data() + "/checkpoints/alice/s:train:0/weights/" + random_id());
  const CheckReport report = check_data(data());
  EXPECT_THAT(report.damages, IsEmpty());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("no row knows it")));
}

TEST_F(Backup, ASignalThatAsksToStopLeavesNothing) {
  const auto stopped = [&](const std::function<void()>& body) {
    StopSignals::ask(SIGTERM);
    EXPECT_NE(error_of(body), "");
    StopSignals::forget();
  };
  stopped([&] { back_up(data(), tar()); });
  EXPECT_THAT(dir_.names(), ElementsAre("data"));
  stopped([&] { check_data(data()); });
  back_up(data(), tar());
  stopped([&] { restore(tar(), restored()); });
  stopped([&] { check_backup(tar()); });
  EXPECT_THAT(dir_.names(), ElementsAre("backup.tar", "data"));
}

TEST_F(Backup, WhatARunThatWasKilledLeftIsRemoved) {
  const std::string id(32, 'a');
  fs::create_directories(tar() + ".db-" + id);
  write_bytes(tar() + ".db-" + id + "/strata.db", "of tenants");
  fs::create_directories(restored() + ".restoring-" + id + "/checkpoints");
  back_up(data(), tar());
  restore(tar(), restored());
  EXPECT_THAT(dir_.names(), ElementsAre("backup.tar", "data", "restored"));
}

TEST_F(Backup, BackingUpRefusesWhatIsDamagedOrInTheWay) {
  EXPECT_THAT(error_of([&] { back_up(dir_.path(), tar()); }), HasSubstr("has no secret"));
  write_bytes(tar(), "mine");
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }), HasSubstr("is there already"));
  EXPECT_EQ(read_bytes(tar()), "mine");
  fs::remove(tar());
  flip(folder(1) + "/adapter_config.json", 0);
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }),
              HasSubstr(folder(1) + "/adapter_config.json"));
  fs::remove_all(folder(1));
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }), HasSubstr(folder(1)));
  EXPECT_THAT(dir_.names(), ElementsAre("data")) << "nothing stays of a backup that failed";
}

// All of them have seen that nothing is there.
TEST_F(Backup, OneOfManyAtOnceIsWritten) {
  std::atomic<int> written = 0, refused = 0;
  std::vector<std::thread> all;
  for (int i = 0; i < 4; ++i) {
    all.emplace_back([&] {
      try {
        back_up(data(), tar());
        ++written;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("is there already"));
        ++refused;
      }
    });
  }
  for (std::thread& one : all) one.join();
  EXPECT_EQ(written, 1);
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace strata::server
