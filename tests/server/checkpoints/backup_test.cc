// SPDX-License-Identifier: Apache-2.0
// Backup, restore and check of a directory that is in use, and every damage by name.
#include "server/checkpoints/backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "base/files.h"
#include "checkpoint/safetensors_writer.h"
#include "server/checkpoints/check.h"
#include "server/checkpoints/record.h"
#include "server/checkpoints/registry.h"
#include "server/checkpoints/tar.h"
#include "server/crypto.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;
using strata::testing::error_of;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void flip(const std::string& path, size_t at) {
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
    store_->add_session(session, {});
  }

  CheckpointRow save(const std::string& name) {
    const std::string dir = registry_->begin();
    SafetensorsWriter writer(dir + "/adapter_model.safetensors", {{"w", DType::kF32, {4}}});
    const float values[] = {1, 2, 3, static_cast<float>(rows_.size())};
    writer.append("w", std::as_bytes(std::span(values)));
    writer.commit();
    write_bytes(dir + "/adapter_config.json", "{}");
    CheckpointSave out;
    out.path = {"s:train:0", CheckpointKind::kWeights, name};
    out.tenant = "alice";
    out.base_model = "base";
    return registry_->finish(dir, out, 1000);
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
  EXPECT_EQ(store.checkpoints_of("s:train:0", 2000).size(), 2u);
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
  registry_->copy(rows_[0], run, std::nullopt, {}, 1000);
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

TEST_F(Backup, RestoringRefusesADamagedBackupAndLeavesNothing) {
  back_up(data(), tar());
  const std::string whole = read_bytes(tar());
  const auto fault = [&](const std::string& bytes) {
    write_bytes(tar(), bytes);
    const std::string text = error_of([&] { restore(tar(), restored()); });
    EXPECT_THAT(dir_.names(), ElementsAre("backup.tar", "data")) << text;
    return text;
  };
  for (const size_t size :
       {size_t{0}, size_t{100}, size_t{512}, whole.size() / 2, whole.size() - 1024})
    EXPECT_NE(fault(whole.substr(0, size)), "") << size;
  // Any bit, of a header or of a file, but not of padding.
  std::string flipped = whole;
  flipped[0] ^= 1;
  EXPECT_THAT(fault(flipped), HasSubstr("no header of a tar file"));
  flipped = whole;
  const size_t header = whole.find("adapter_config.json") / 512 * 512;
  flipped[header + 512 + 1] ^= 1;
  EXPECT_THAT(fault(flipped), HasSubstr("adapter_config.json' is damaged"));
  write_bytes(tar(), whole);
  fs::create_directory(restored());
  write_bytes(restored() + "/mine", "x");
  EXPECT_THAT(error_of([&] { restore(tar(), restored()); }), HasSubstr("is not empty"));
  fs::remove(restored() + "/mine");
  EXPECT_EQ(restore(tar(), restored()).checkpoints, 2) << "an empty directory is fine";
}

// The hashes lie in the same archive: they say nothing of who wrote it.
TEST_F(Backup, RestoringRefusesWhatNoServerWrote) {
  close();
  const std::string insert =
      "INSERT INTO checkpoints (id, run_id, tenant, kind, name, number, created_at, size_bytes, "
      "is_public, base_model, lora, deleted_at, files_gone) VALUES ";
  const std::string id(32, '0');
  struct Case {
    std::string statement, says;
  };
  const Case cases[] = {
      {insert + "('" + id + "','run','../../victim','weights','x',9,1,1,0,'b','{}',1.0,0)",
       "a row that no server wrote"},
      {insert + "('" + id + "','../r','alice','weights','x',9,1,1,0,'b','{}',NULL,0)",
       "a row that no server wrote"},
      {insert + "('0/..','run','alice','weights','x',9,1,1,0,'b','{}',NULL,0)",
       "a row that no server wrote"},
      {"CREATE TRIGGER evil AFTER UPDATE ON meta BEGIN DELETE FROM checkpoints; END", "trigger"},
      {"CREATE VIEW evil AS SELECT 1", "view evil"},
      {"DROP TABLE usage_by_key", "of usage_by_key"},
      {"ALTER TABLE runs ADD COLUMN evil TEXT DEFAULT 'x'", "not as a server makes it"},
      {"CREATE INDEX evil ON runs (id)", "index evil"},
      {"UPDATE meta SET value = 9223372036854775807 WHERE name = 'boot'", "boot number"},
      {"UPDATE checkpoints SET lora = '{'", "lora"},
      {"UPDATE checkpoints SET number = 9223372036854775807 WHERE name = 'a'", "number"},
      {"UPDATE checkpoints SET size_bytes = 'many'", "size_bytes"},
      {"UPDATE sessions SET tenant = x'00'", "tenant"},
      {"UPDATE meta SET value = 99 WHERE name = 'schema_version'", "schema version 99"},
      {"CREATE TABLE evil (a CHECK (length(hex(zeroblob(400000000))) > 1))", "table evil"},
      {"UPDATE sessions SET user_metadata = '{'", "sessions: user_metadata"},
      {"UPDATE checkpoints SET user_metadata = '{},\"evil\":1'", "checkpoints: user_metadata"},
      {"UPDATE checkpoints SET user_metadata = CAST(x'7b2261223a22ff227d' AS TEXT)",
       "checkpoints: user_metadata"},
      {"UPDATE checkpoints SET files_gone = -3", "files_gone"},
      {"UPDATE checkpoints SET files_gone = 1", "neither there nor gone"},
      {"UPDATE checkpoints SET is_public = 7", "neither there nor gone"},
      {"UPDATE checkpoints SET size_bytes = -1", "size_bytes"},
      {"UPDATE checkpoints SET expires_at = 9e999", "expires_at"},
      {"UPDATE sessions SET created_at = -1", "created_at"},
      {"UPDATE checkpoints SET base_model = printf('%.*c', 2000000, 'x')", "base_model"},
  };
  const std::string kept = dir_.path() + "/kept";
  fs::copy(data(), kept, fs::copy_options::recursive);
  for (const Case& c : cases) {
    open_sqlite(data() + "/strata.db")->run(c.statement, {});
    EXPECT_THAT(damages(), ::testing::Contains(HasSubstr(c.says))) << c.statement;
    repack(kept);
    const std::string fault = error_of([&] { restore(tar(), restored()); });
    EXPECT_THAT(fault, HasSubstr(c.says)) << c.statement;
    EXPECT_THAT(fault, HasSubstr("nothing was restored"));
    EXPECT_FALSE(fs::exists(restored())) << c.statement;
    fs::remove_all(data());
    fs::copy(kept, data(), fs::copy_options::recursive);
  }
  for (const std::string& secret : {std::string(), std::string("short")}) {
    repack(kept, secret);
    EXPECT_NE(error_of([&] { restore(tar(), restored()); }), "");
  }
  repack(kept);
  EXPECT_EQ(restore(tar(), restored()).checkpoints, 2) << "the untouched one";
}

// What a foreign schema says is not run, be it only to look whether the database is whole: it could
// take for ever. Here it would fail.
TEST_F(Backup, AForeignSchemaIsNotRun) {
  close();
  const std::string fails = "abs(-9223372036854775807 - 1)";
  const std::string view = " AS SELECT 'schema_version' AS name, " + fails + " AS value";
  struct Case {
    std::vector<std::string> statements;
    const char* says;
  };
  const std::string kept = read_bytes(data() + "/strata.db");
  for (const Case& c :
       {Case{{"DROP TABLE meta", "CREATE VIEW meta" + view}, "meta is not as"},
        Case{{"DROP TABLE meta", "CREATE VIEW META" + view}, "meta is not as"},
        Case{{"CREATE TABLE evil (a CHECK (" + fails + " > a))",
              "PRAGMA ignore_check_constraints = ON", "INSERT INTO evil VALUES (1)"},
             "has table evil"}}) {
    {
      const auto sql = open_sqlite(data() + "/strata.db");
      for (const std::string& statement : c.statements) sql->run(statement, {});
    }
    EXPECT_THAT(damages(), ElementsAre(HasSubstr(c.says)));
    for (const char* suffix : {"-wal", "-shm"}) fs::remove(data() + "/strata.db" + suffix);
    write_bytes(data() + "/strata.db", kept);
  }
}

TEST_F(Backup, TheStartAndABackupRefuseARowThatNamesAnotherFolder) {
  fs::create_directories(dir_.path() + "/victim/run/weights/" + std::string(32, '0'));
  close();
  open_sqlite(data() + "/strata.db")
      ->run(
          "INSERT INTO checkpoints (id, run_id, tenant, kind, name, number, created_at, "
          "size_bytes, is_public, base_model, lora, deleted_at, files_gone) VALUES "
          "('00000000000000000000000000000000','run','../../victim','weights','x',9,1,1,0,'b',"
          "'{}',1.0,0)",
          {});
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }), HasSubstr("no server wrote"));
  DataDir dir(data());
  StateStore store(open_sqlite(dir.database()), 2000);
  EXPECT_THAT(error_of([&] { CheckpointRegistry(dir, store, {}); }), HasSubstr("no server wrote"));
  EXPECT_TRUE(fs::exists(dir_.path() + "/victim/run/weights"));
}

TEST_F(Backup, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder(0) + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }), HasSubstr("not a regular file"));
  EXPECT_FALSE(damages().empty());
  fs::remove(folder(0) + "/pipe");
  close();
  fs::remove(data() + "/secret");
  ASSERT_EQ(::mkfifo((data() + "/secret").c_str(), 0600), 0);
  EXPECT_THAT(damages(), ::testing::Contains(HasSubstr("not a regular file")));
}

TEST_F(Backup, ADirectoryThatOthersMayReadIsMadeNarrow) {
  close();
  const auto mode = [](const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  for (const bool allow_loose : {true, false}) {
    ASSERT_EQ(::chmod(data().c_str(), 0755), 0);
    ASSERT_EQ(::chmod((data() + "/strata.db").c_str(), 0644), 0);
    const DataDir dir(data(), allow_loose);
    EXPECT_EQ(mode(data()), allow_loose ? 0755U : 0700U);
    EXPECT_EQ(mode(data() + "/strata.db"), allow_loose ? 0644U : 0600U);
  }
  const std::string elsewhere = dir_.file("elsewhere");
  write_bytes(elsewhere, "x");
  ASSERT_EQ(::chmod(elsewhere.c_str(), 0644), 0);
  fs::remove(data() + "/strata.db-wal");
  fs::create_symlink(elsewhere, data() + "/strata.db-wal");
  const DataDir dir(data());
  EXPECT_EQ(mode(elsewhere), 0644U) << "what a link names is somebody else's";
}

TEST(Restore, TakesNoFileThatABackupDoesNotHave) {
  const TempDir dir;
  const std::string id(32, 'a');
  const std::string inside = "checkpoints/alice/r/weights/" + id + "/";
  for (const std::string& name :
       {std::string("../evil"), std::string("/etc/evil"), std::string("secret/evil"),
        std::string("checkpoints/alice"), "checkpoints/../r/weights/" + id + "/x",
        "checkpoints/alice/../weights/" + id + "/x", "checkpoints/alice/r/other/" + id + "/x",
        std::string("checkpoints/alice/r/weights/../x"), inside + "..", inside + "a/b",
        inside + "a b"}) {
    const std::string path = dir.file("evil.tar");
    fs::remove(path);
    TarWriter writer(path);
    writer.add(name, "evil", 0);
    writer.commit();
    EXPECT_THAT(error_of([&] { restore(path, dir.file("out")); }), HasSubstr("no file of a backup"))
        << name;
    EXPECT_THAT(dir.names(), ElementsAre("evil.tar")) << name;
  }
  const std::string path = dir.file("twice.tar");
  TarWriter writer(path);
  writer.add("secret", "a", 0);
  writer.add("secret", "b", 0);
  writer.commit();
  EXPECT_THAT(error_of([&] { restore(path, dir.file("out")); }), HasSubstr("there twice"));
  TarWriter unlisted(path);
  unlisted.add("secret", "a", 0);
  unlisted.add("MANIFEST", "", 0);
  unlisted.commit();
  EXPECT_THAT(error_of([&] { restore(path, dir.file("out")); }), HasSubstr("list of files"));
}

TEST(Tar, LongNamesAndAllSizesComeBack) {
  const TempDir dir;
  const std::string path = dir.file("t.tar");
  const std::string folders = std::string(60, 'a') + "/" + std::string(80, 'b');
  std::vector<std::pair<std::string, std::string>> files;
  for (const size_t size : {0, 1, 511, 512, 513, 5000})
    files.emplace_back(folders + "/" + std::to_string(size), std::string(size, 'x'));
  files.emplace_back(std::string(100, 'n'), "n");
  TarWriter writer(path);
  for (const auto& [name, content] : files)
    EXPECT_EQ(writer.add(name, content, 5), sha256(content));
  writer.commit();
  TarReader reader(path);
  for (const auto& [name, content] : files) {
    const std::optional<TarEntry> entry = reader.next();
    ASSERT_TRUE(entry.has_value());
    EXPECT_EQ(entry->name, name);
    std::string got;
    reader.read(*entry, [&](std::string_view piece) { got += piece; });
    EXPECT_EQ(got, content);
  }
  EXPECT_FALSE(reader.next().has_value());
}

}  // namespace
}  // namespace strata::server
