// SPDX-License-Identifier: Apache-2.0
// What restoring refuses, and what a start does of a directory that somebody else could write.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "server/store/checkpoints/backup.h"
#include "tests/server/store/checkpoints/backup_fixture.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  const std::string usage =
      "INSERT INTO usage_by_key WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n "
      "WHERE i < ";
  struct Case {
    std::string statement, says;
  };
  const Case cases[] = {
      {insert + "('" + id +
           "','run','../../victim','weights','x',9,1,1,0,'b','{\"rank\":8}',1.0,0)",
       "have a tenant that no server writes, as '../../victim'"},
      {insert + "('" + id + "','../r','alice','weights','x',9,1,1,0,'b','{\"rank\":8}',NULL,0)",
       "have a run_id that no server writes"},
      {insert + "('0/..','run','alice','weights','x',9,1,1,0,'b','{\"rank\":8}',NULL,0)",
       "have a id that no server writes"},
      {insert + "('0','run','alice','weights','x',9,1,1,0,'b','{\"rank\":8}',NULL,0)",
       "a row that no server wrote"},
      {insert + "('" + id + "','run','alice','weights','a/b',9,1,1,0,'b','{\"rank\":8}',NULL,0)",
       "a row that no server wrote"},
      // Each sweep would end at such a tenant, and what it looks at first would stay for ever.
      {"UPDATE sessions SET tenant = CAST(x'ff' AS TEXT)", "1 rows of sessions have a tenant"},
      {"UPDATE sessions SET id = CAST(x'01ff' AS TEXT)", "sessions have a id"},
      {"UPDATE sessions SET id = '../../x'", "sessions have a id that no server writes, as '../"},
      {"UPDATE sessions SET sdk_version = CAST(x'c3' AS TEXT)", "sessions have a sdk_version"},
      {"UPDATE sessions SET state = 'asleep'", "sessions have a state"},
      {"UPDATE sessions SET tags = '[],\"evil\":1'", "sessions: tags"},
      {"UPDATE runs SET id = 'a/b'", "runs have a id"},
      {"UPDATE runs SET state = 'active'", "runs have a state"},
      {"INSERT INTO tenants VALUES ('a b', 99, 1)", "tenants have a name"},
      {"INSERT INTO samplers VALUES ('s:sample:0', 'a/b', 0, 'alice', 9, 1, 'b', NULL, NULL, 0, 1)",
       "samplers have a session_id"},
      {"INSERT INTO idempotency VALUES ('alice', 'copy', CAST(x'ff' AS TEXT), 'v', 1, 1)",
       "idempotency have a name"},
      {"CREATE TRIGGER evil AFTER UPDATE ON meta BEGIN DELETE FROM checkpoints; END", "trigger"},
      {"CREATE VIEW evil AS SELECT 1", "view evil"},
      {"DROP TABLE usage_by_key", "of usage_by_key"},
      {"ALTER TABLE runs ADD COLUMN evil TEXT DEFAULT 'x'", "not as a server makes it"},
      {"CREATE INDEX evil ON runs (id)", "index evil"},
      {"UPDATE meta SET value = 9223372036854775807 WHERE name = 'boot'", "boot number"},
      {"UPDATE checkpoints SET lora = '{'", "lora"},
      {"UPDATE checkpoints SET lora = '{}'", "lora: rank 0"},
      {"UPDATE checkpoints SET rowid = -9223372036854775808, lora = '{}' "
       "WHERE rowid = (SELECT min(rowid) FROM checkpoints)",
       "lora: rank 0"},
      {"UPDATE checkpoints SET rowid = 9223372036854775807, lora = '{}' "
       "WHERE rowid = (SELECT max(rowid) FROM checkpoints)",
       "lora: rank 0"},
      {"UPDATE checkpoints SET lora = '{\"rank\":-1}'", "lora: rank -1"},
      {"UPDATE checkpoints SET lora = '{\"rank\":6}'", "lora: rank 6"},
      {"UPDATE checkpoints SET lora = '{\"rank\":1099511627776}'", "lora: rank 1099511627776"},
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
      {usage + "1) SELECT 'alice', 'k' || i, 4503599627370496, 0, 0, 0 FROM n",
       "the requests of usage_by_key come to more than"},
      {usage + "1) SELECT 'alice', 'k' || i, 0, 0, 0, 4503599627370496 FROM n",
       "the prompt_tokens of usage_by_key come to more than"},
      {"INSERT INTO stability_prompts VALUES ('s', 'i', 'a', 1e9, 4503599627370496, 'x'), "
       "('s', 'j', 'a', 1e9, 4503599627370496, 'x')",
       "the bytes of stability_prompts come to more than"},
      {"UPDATE checkpoints SET size_bytes = 4503599627370496, deleted_at = 1",
       "the size_bytes of checkpoints come to more than"},
      // Of a text, SQLite's length() ends at the first NUL.
      {"UPDATE sessions SET display_name = CAST(zeroblob(70000) AS TEXT)", "display_name"},
      {"UPDATE sessions SET display_name = 'a' || char(0) || 'b'", "display_name"},
      {"UPDATE sessions SET user_metadata = '{\"a\":\"' || printf('%.*c', 66000, 'x') || '\"}'",
       "user_metadata"},
      {"INSERT INTO stability_prompts VALUES ('s', 'i', 'alice', 1e9, 1, zeroblob(67108865))",
       "stability_prompts have a prompt"},
      {"INSERT INTO stability VALUES ('s', 'i:0', 1e9, zeroblob(67108865), 'i')",
       "stability have a record"},
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

// A server that starts with them counts on from them, and must be backed up as well.
TEST_F(Backup, CountersNearTheirEndAreNeitherRestoredNorBackedUp) {
  close();
  const std::string most = "1125899906842624";  // 2^50
  const std::string kept = dir_.path() + "/kept";
  fs::copy(data(), kept, fs::copy_options::recursive);
  const auto change = [&](const std::string& statement) {
    fs::remove_all(data());
    fs::copy(kept, data(), fs::copy_options::recursive);
    open_sqlite(data() + "/strata.db")->run(statement, {});
  };
  struct Case {
    std::string statement, says;
  };
  for (const Case& c :
       {Case{"UPDATE sessions SET number = " + most + " + 1", "sessions have a number"},
        Case{"INSERT INTO tenants VALUES ('bob', " + most + " + 1, 1)", "tenants have a number"},
        Case{"UPDATE meta SET value = " + most + " + 1 WHERE name = 'boot'", "boot number"}}) {
    change(c.statement);
    EXPECT_THAT(damages(), ::testing::IsEmpty()) << "a server may come further: " << c.statement;
    EXPECT_THAT(error_of([&] { back_up(data(), tar()); }),
                ::testing::AllOf(HasSubstr("restoring would refuse it"), HasSubstr(c.says)));
    EXPECT_THAT(dir_.names(), ElementsAre("data", "kept"));
    repack(kept);
    EXPECT_THAT(error_of([&] { restore(tar(), restored()); }), HasSubstr(c.says));
    EXPECT_THAT(error_of([&] { check_backup(tar()); }), HasSubstr(c.says));
    fs::remove(tar());
  }
  change("UPDATE sessions SET number = " + most);
  back_up(data(), tar());
  EXPECT_EQ(restore(tar(), restored()).checkpoints, 2);
}

// Whatever else restoring refuses.
TEST_F(Backup, WhatRestoringWouldRefuseIsNotBackedUp) {
  open_sqlite(data() + "/strata.db")->run("UPDATE sessions SET display_name = 'a' || char(0)", {});
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }),
              ::testing::AllOf(HasSubstr("restoring would refuse it: strata.db: "),
                               HasSubstr("display_name")));
  EXPECT_THAT(dir_.names(), ElementsAre("data"));
}

// Its texts take other bytes than those that were measured.
TEST_F(Backup, ADatabaseOfAnotherEncodingIsRefused) {
  close();
  const std::string path = data() + "/strata.db", other = dir_.file("utf16.db");
  {
    const auto from = open_sqlite(path);
    const auto to = open_sqlite(":memory:");
    to->run("PRAGMA encoding='UTF-16le'", {});
    for (const SqlRow& row :
         from->run("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid", {}).rows)
      to->run(std::get<std::string>(row[0]), {});
    const SqlValue target = other;
    to->run("VACUUM INTO ?", {&target, 1});
  }
  for (const char* suffix : {"-wal", "-shm"}) fs::remove(path + suffix);
  fs::rename(other, path);
  EXPECT_THAT(damages(), ElementsAre(HasSubstr("encoding is not UTF-8")));
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }), HasSubstr("encoding is not UTF-8"));
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
          "'{\"rank\":8}',1.0,0)",
          {});
  EXPECT_THAT(error_of([&] { back_up(data(), tar()); }), HasSubstr("no server writes"));
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
  for (const char* list : {"MANIFEST", "MANIFEST.hmac"}) {
    TarWriter lists(path);
    lists.add("secret", "a", 0);
    lists.add(list, "a", 0);
    lists.add(list, "b", 0);
    lists.commit();
    EXPECT_THAT(error_of([&] { restore(path, dir.file("out")); }), HasSubstr("there twice"));
  }
  TarWriter unlisted(path);
  unlisted.add("secret", "a", 0);
  unlisted.add("MANIFEST", "", 0);
  unlisted.commit();
  EXPECT_THAT(error_of([&] { restore(path, dir.file("out")); }), HasSubstr("list of files"));
}

// An archive that is hardly on the disk, of files that no disk has space for.
TEST(Restore, LooksAtTheRoomBeforeItUnpacks) {
  const TempDir dir;
  const std::string path = dir.file("sparse.tar"), one = dir.file("one.tar");
  const std::string folder = "checkpoints/alice/r/weights/" + std::string(32, 'a') + "/";
  const uint64_t most = (uint64_t{1} << 33) - 512;  // of a file
  const uint64_t files = fs::space(dir.path()).available / most + 2;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  off_t at = 0;
  for (uint64_t i = 0; i < files; ++i) {
    fs::remove(one);
    TarWriter writer(one);
    writer.add(folder + std::to_string(i), "", 0);
    writer.commit();
    std::string header = read_bytes(one).substr(0, 512);
    header.replace(124, 11, "77777777000");  // its size
    int sum = 0;
    for (size_t byte = 0; byte < header.size(); ++byte)
      sum += byte >= 148 && byte < 156 ? ' ' : static_cast<unsigned char>(header[byte]);
    header.replace(148, 6, fmt::format("{:06o}", sum));
    ASSERT_EQ(::pwrite(file, header.data(), header.size(), at), 512);
    at += 512 + static_cast<off_t>(most);
  }
  fs::remove(one);
  ASSERT_EQ(::ftruncate(file, at + 1024), 0);
  ::close(file);
  const std::string text = error_of([&] { restore(path, dir.file("out")); });
  EXPECT_THAT(text, HasSubstr("are free at"));
  EXPECT_THAT(dir.names(), ElementsAre("sparse.tar"));
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
