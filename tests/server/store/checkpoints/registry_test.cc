// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "base/busy.h"
#include "base/crypto.h"
#include "base/files.h"
#include "server/store/checkpoints/age.h"
#include "server/store/checkpoints/signed_url.h"
#include "tests/server/store/checkpoints/registry_fixture.h"
#include "tests/server/store/state/read_lists.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;
using strata::testing::checkpoints_of;
using strata::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Registry, TheFolderIsPrivateLockedAndKeepsItsSecret) {
  struct stat info;
  ASSERT_EQ(::stat((data_->path() + "/secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  ASSERT_EQ(::stat(data_->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_THAT(error_of([&] { DataDir(data_->path()); }), HasSubstr("another strata serve"));
  const std::string secret = data_->secret();
  write_bytes(data_->temporary() + "/half", "x");
  open(2000);
  EXPECT_EQ(data_->secret(), secret);
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
}

TEST_F(Registry, ASavedCheckpointIsThereAfterARestart) {
  const CheckpointRow row = finish(save("a"));
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
  open(2000);
  const CheckpointRow found = registry_->require_checkpoint(
      {"s:train:0", CheckpointKind::kWeights, "a"}, "alice", false, 2000);
  EXPECT_EQ(found.id, row.id);
  EXPECT_EQ(adapter(found), "weights");
  EXPECT_THAT(read_bytes(registry_->folder(found) + "/strata.json"),
              HasSubstr("\"path\":\"tinker://s:train:0/weights/a\""));
  EXPECT_EQ(registry_->list_downloadable_files(found).size(), 2u);
}

TEST_F(Registry, FoldersWithoutARowAndRowsWithoutAFolderGoAtTheStart) {
  const CheckpointRow kept = finish(save("kept"));
  const CheckpointRow lost = finish(save("lost"));
  const std::string stray = folder_of(registry_->folder(kept)) + "/" + random_id();
  fs::create_directories(stray);
  write_bytes(stray + "/adapter_model.safetensors", "half");
  fs::remove_all(registry_->folder(lost));
  open(2000);
  EXPECT_FALSE(fs::exists(stray));
  EXPECT_EQ(adapter(kept), "weights");
  EXPECT_EQ(checkpoints_of(data_->database(), "s:train:0", 2000).size(), 1u);
  // A stray is set aside: its bytes are for the operator to judge.
  ASSERT_EQ(std::distance(fs::directory_iterator(data_->lost()), fs::directory_iterator()), 1);
  const fs::path moved = fs::directory_iterator(data_->lost())->path();
  EXPECT_EQ(read_bytes(moved.string() + "/adapter_model.safetensors"), "half");
}

// The disk of checkpoints is not mounted, or another one is: nothing is changed until it is.
TEST_F(Registry, AnAbsentFolderOfCheckpointsDestroysNothing) {
  std::vector<CheckpointRow> rows;
  for (const char* name : {"a", "b", "c"}) rows.push_back(finish(save(name)));
  const std::string folder = data_->checkpoints();
  fs::rename(folder, dir_.path() + "/unmounted");
  EXPECT_THAT(error_of([&] { open(2000); }), HasSubstr("--accept-loss"));
  write_bytes(folder + "/fingerprint", "another");
  EXPECT_THAT(error_of([&] { open(2000); }), HasSubstr("of another data directory"));
  fs::remove_all(folder);
  fs::rename(dir_.path() + "/unmounted", folder);
  open(2000);
  for (const CheckpointRow& row : rows) EXPECT_EQ(adapter(row), "weights");
  EXPECT_EQ(checkpoints_of(data_->database(), "s:train:0", 2000).size(), 3u);
}

TEST_F(Registry, ManyMissingFoldersAreAskedAbout) {
  for (const char* name : {"a", "b", "c", "d"}) finish(save(name));
  for (const auto& row : checkpoints_of(data_->database(), "s:train:0", 1000)) {
    if (row.name <= "b") fs::remove_all(registry_->folder(row));
  }
  EXPECT_THAT(error_of([&] { open(2000); }), HasSubstr("2 of 4 checkpoints are missing"));
  open(2000, 0, /*accept_loss=*/true);
  EXPECT_EQ(checkpoints_of(data_->database(), "s:train:0", 2000).size(), 2u);
}

// Yesterday's database beside today's files: what it does not know is kept.
TEST_F(Registry, ARestoredDatabaseDestroysNothing) {
  finish(save("old"));
  registry_.reset();
  store_.reset();
  fs::copy_file(data_->database(), dir_.path() + "/backup");
  open(1000);
  const CheckpointRow young = finish(save("young"), 1000, "since then");
  registry_.reset();
  store_.reset();
  fs::copy_file(dir_.path() + "/backup", data_->database(), fs::copy_options::overwrite_existing);
  open(2000);
  EXPECT_EQ(checkpoints_of(data_->database(), "s:train:0", 2000).size(), 1u);
  const fs::path moved = fs::directory_iterator(data_->lost())->path();
  EXPECT_THAT(moved.string(), HasSubstr(young.id));
  EXPECT_EQ(read_bytes(moved.string() + "/adapter_model.safetensors"), "since then");
}

// A folder of before there were marks has none, and gets one.
TEST_F(Registry, AnOlderFolderOpens) {
  const CheckpointRow row = finish(save("a"));
  fs::remove(data_->checkpoints() + "/fingerprint");
  registry_.reset();
  store_.reset();
  const SqlValue name = std::string("checkpoints_marked");
  open_sqlite(data_->database())->run("DELETE FROM meta WHERE name = ?", {&name, 1});
  open(2000);
  EXPECT_EQ(adapter(row), "weights");
  EXPECT_TRUE(fs::exists(data_->checkpoints() + "/fingerprint"));
}

// What is kept for a day alone.
TEST_F(Registry, KeysOfRequestsAreForgottenAfterADay) {
  const Idempotency key{"k", 7};
  SessionRow session;
  session.id = "s2";
  session.tenant = "alice";
  session.created_at = 1000;
  const auto is_known = [&] {
    return store_->find_remembered("alice", "session", key).has_value();
  };
  store_->ensure_session(session, key);
  registry_->sweep(1000 + 86'398, 0);
  EXPECT_TRUE(is_known());
  registry_->sweep(1000 + 86'402, 4);
  EXPECT_FALSE(is_known());
}

TEST_F(Registry, FilesGoWhenACheckpointHasExpired) {
  CheckpointSave with_end = save("a");
  with_end.ttl_seconds = 86400;
  const CheckpointRow row = finish(with_end);
  registry_->sweep(1000 + 86'399, 0);
  EXPECT_EQ(adapter(row), "weights");
  registry_->sweep(1000 + 86'401, 2);
  EXPECT_FALSE(fs::exists(registry_->folder(row)));
}

// The answer to COMMIT is lost. Whether it was done decides what becomes of the files.
TEST_F(Registry, ACommitOfUnknownOutcomeLosesNoFiles) {
  const CheckpointRow old = finish(save("a"), 1000, "old");
  const auto faults = std::make_shared<SqlFaults>();
  registry_.reset();
  store_ = std::make_unique<StateStore>(
      std::make_unique<FaultySql>(open_sqlite(data_->database()), faults), 1000);
  registry_ = std::make_unique<CheckpointRegistry>(*data_, *store_, RegistryOptions{});
  faults->commit_lost = true;
  const CheckpointRow row = finish(save("a"), 1000, "new");
  EXPECT_EQ(store_->find_checkpoint("s:train:0", CheckpointKind::kWeights, "a", 1000)->id, row.id);
  EXPECT_EQ(adapter(row), "new");
  faults->statement = "COMMIT";  // not done, and the store says so
  EXPECT_THAT(error_of([&] { finish(save("a"), 1000, "never"); }), HasSubstr("injected"));
  EXPECT_EQ(adapter(*store_->find_checkpoint("s:train:0", CheckpointKind::kWeights, "a", 1000)),
            "new");
}

TEST_F(Registry, OverwriteSwitchesTheRowAndOnlyThenTheOldFilesGo) {
  const CheckpointRow old = finish(save("a"), 1000, "old");
  CheckpointSave again = save("a");
  again.overwrite = false;
  EXPECT_THAT(error_of([&] { finish(again); }), HasSubstr("already exists"));
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
  again.overwrite = true;
  const CheckpointRow fresh = finish(again, 1100, "new");
  EXPECT_EQ(adapter(old), "old");
  {
    const auto lease = registry_->lease(old.id);
    registry_->sweep(1200, 1200);
    EXPECT_EQ(adapter(old), "old");
  }
  registry_->sweep(1200, 1200);
  EXPECT_FALSE(fs::exists(registry_->folder(old)));
  EXPECT_EQ(adapter(fresh), "new");
}

// Other jobs of the thread that sweeps come between two pieces.
TEST_F(Registry, WhatMayGoGoesInPieces) {
  registry_ =
      std::make_unique<CheckpointRegistry>(*data_, *store_, RegistryOptions{.piece_seconds = 0});
  for (int i = 0; i < 120; ++i) {
    const CheckpointRow row = finish(save("c" + std::to_string(i)), 1000, "a");
    EXPECT_TRUE(store_->delete_checkpoint(row.id, 1100));
  }
  std::set<size_t> left;
  while (registry_->sweep_piece(1200, 1200)) left.insert(store_->rows_with_files().size());
  EXPECT_GE(left.size(), 2u);
  EXPECT_EQ(*left.begin(), 0u);
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
}

// A kill in the middle of a removal leaves a folder that is whole or none, and what is none was
// wanted so: no loss to ask about.
TEST_F(Registry, ReplacedFilesGoInOneStep) {
  std::vector<CheckpointRow> old;
  for (const char* name : {"a", "b"}) {
    old.push_back(finish(save(name), 1000, "old"));
    finish(save(name), 1100, "new");
  }
  fs::remove(data_->temporary());
  EXPECT_THAT(error_of([&] { registry_->sweep(1200, 1200); }), HasSubstr("rename"));
  for (const CheckpointRow& row : old) {
    EXPECT_EQ(adapter(row), "old");
    EXPECT_EQ(registry_->list_downloadable_files(row).size(), 2u);
  }
  for (const CheckpointRow& row : old) fs::remove_all(registry_->folder(row));
  open(2000);
  EXPECT_EQ(store_->rows_with_files().size(), 4u);
  registry_->sweep(2000, 2000);
  EXPECT_EQ(store_->rows_with_files().size(), 2u);
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
}

TEST_F(Registry, AnotherTenantSeesOnlyWhatIsPublic) {
  const CheckpointRow row = finish(save("a"));
  const TinkerPath path = path_of(row);
  const std::string foreign =
      error_of([&] { registry_->require_checkpoint(path, "bob", true, 1100); });
  EXPECT_THAT(foreign, HasSubstr("does not exist"));
  EXPECT_THAT(error_of([&] { registry_->require_checkpoint(path, "bob", true, 1100); }), foreign);
  store_->set_public(row.id, true);
  EXPECT_EQ(registry_->require_checkpoint(path, "bob", true, 1100).id, row.id);
  EXPECT_THAT(error_of([&] { registry_->require_checkpoint(path, "bob", false, 1100); }), foreign);
}

TEST_F(Registry, ANameIsFreeOnceItsCheckpointHasExpired) {
  CheckpointSave first = save("a");
  first.ttl_seconds = 60;
  finish(first);
  CheckpointSave again = save("a");
  again.overwrite = false;
  EXPECT_THAT(error_of([&] { finish(again, 1059); }), HasSubstr("already exists"));
  const CheckpointRow row = finish(again, 1061, "new");
  EXPECT_EQ(adapter(row), "new");
  registry_->sweep(2000, 0);
  EXPECT_EQ(adapter(row), "new");
}

TEST_F(Registry, TheDiskLimitFailsOnlyTheSaveThatPassesIt) {
  const CheckpointRow row = finish(save("a"));
  open(2000, row.size_bytes + 10);
  EXPECT_THAT(error_of([&] { finish(save("b")); }), HasSubstr("--max-disk"));
  EXPECT_TRUE(fs::is_empty(data_->temporary()));
  EXPECT_EQ(checkpoints_of(data_->database(), "s:train:0", 2000).size(), 1u);
  store_->delete_checkpoint(row.id, 2000);
  registry_->sweep(2000, 2000);
  EXPECT_NO_THROW(finish(save("b")));
}

TEST_F(Registry, EncryptsEveryFileOfAnExternalCheckpoint) {
  CheckpointSave external = save("e", CheckpointKind::kExternal);
  external.age_recipients = {age::x25519_public(random_bytes(32))};
  const CheckpointRow row = finish(external);
  std::vector<std::string> names;
  for (const CheckpointFile& file : registry_->list_downloadable_files(row))
    names.push_back(file.name);
  EXPECT_THAT(names, ElementsAre("adapter_config.json.age", "adapter_model.safetensors.age"));
  const std::string bytes = read_bytes(registry_->folder(row) + "/adapter_model.safetensors.age");
  EXPECT_TRUE(bytes.starts_with("age-encryption.org/v1\n-> X25519 "));
  EXPECT_EQ(bytes.find("weights"), std::string::npos);
}

TEST_F(Registry, AFolderThatCannotBeListedIsAFault) {
  const CheckpointRow row = finish(save("a"));
  fs::remove_all(registry_->folder(row));
  std::ofstream(registry_->folder(row)) << "no folder";
  EXPECT_THROW(static_cast<void>(registry_->list_downloadable_files(row)), Error);
}

TEST_F(Registry, ACopyOutlivesItsSource) {
  const CheckpointRow source = finish(save("a"));
  RunRow run;
  run.id = "copy:train:0";
  run.tenant = "bob";
  run.base_model = "base";
  const std::string path = registry_->copy_to_new_run(source, run, std::nullopt, {"key"}, 1100);
  EXPECT_EQ(path, "tinker://copy:train:0/weights/a");
  run.id = "copy:train:1";
  EXPECT_EQ(registry_->copy_to_new_run(source, run, std::nullopt, {"key"}, 1100), path);
  store_->delete_checkpoint(source.id, 1200);
  registry_->sweep(1200, 1200);
  EXPECT_FALSE(fs::exists(registry_->folder(source)));
  open(2000);
  const CheckpointRow copy =
      registry_->require_checkpoint(parse_tinker_path(path), "bob", false, 2000);
  EXPECT_EQ(adapter(copy), "weights");
  EXPECT_EQ(StoreLists(open_sqlite_reader(data_->database())).count_runs("bob", ""), 1);
}

TEST_F(Registry, TheArchiveIsATarOfRegularFiles) {
  const std::string content(1000, 'x');
  const CheckpointRow row = finish(save("a"), 1'700'000'000, content);
  const std::string tar = registry_->ensure_archive(row, "alice", 0);
  EXPECT_EQ(registry_->ensure_archive(row, "alice", 0), tar);
  EXPECT_EQ(fs::file_size(tar) % 512, 0u);
  const std::string list = dir_.file("list");
  ASSERT_EQ(std::system(("tar tvf " + tar + " > " + list + " && tar xf " + tar + " -C " +
                         dir_.path() + " 2>&1")
                            .c_str()),
            0);
  EXPECT_THAT(read_bytes(list), HasSubstr("-rw-r--r-- 0/0            1000 2023-11-1"));
  EXPECT_EQ(read_bytes(dir_.file("adapter_model.safetensors")), content);
  EXPECT_EQ(read_bytes(dir_.file("adapter_config.json")), "{}");
  EXPECT_TRUE(fs::exists(dir_.file("checkpoint_complete")));
}

TEST_F(Registry, ArchivesAreBoundedAndThoseGoThatNobodyRead) {
  const std::string content(100'000, 'x');
  registry_ = std::make_unique<CheckpointRegistry>(
      *data_, *store_, RegistryOptions{.archives = SharedLimit(300'000)});  // two of them
  const auto saved = [&](const std::string& name) { return finish(save(name), 1000, content); };
  const CheckpointRow first = saved("1"), second = saved("2"), third = saved("3");
  registry_->ensure_archive(first, "alice", 1);
  registry_->ensure_archive(second, "alice", 2);
  EXPECT_TRUE(registry_->touch_archive(first, 3).has_value());
  registry_->ensure_archive(third, "alice", 4);
  EXPECT_TRUE(registry_->touch_archive(first, 5).has_value());
  EXPECT_FALSE(registry_->touch_archive(second, 5).has_value());
  EXPECT_TRUE(registry_->fits_archive(third));
  const CheckpointRow large = finish(save("large"), 1000, std::string(300'000, 'x'));
  EXPECT_FALSE(registry_->fits_archive(large));
  EXPECT_THROW(registry_->ensure_archive(large, "alice", 5), Busy);
  EXPECT_TRUE(registry_->touch_archive(first, 5).has_value());
  registry_->sweep(2000, 8000);
  EXPECT_FALSE(registry_->touch_archive(first, 8000).has_value()) << "nobody read it for two hours";
}

TEST_F(Registry, AMergedArchiveHasRoomOrIsRefused) {
  registry_ = std::make_unique<CheckpointRegistry>(
      *data_, *store_, RegistryOptions{.archives = SharedLimit(35'000)});  // for one alone
  const CheckpointRow small = finish(save("a"), 1000, std::string(1000, 'x'));
  const std::string tar = registry_->ensure_archive(small, "alice", 0);
  ModelMerger merger{
      .bytes = {30'000, 6000}, .write = [&](size_t, const std::string&, const std::string& to) {
        EXPECT_THROW(registry_->ensure_archive(small, "alice", 1), Busy) << "it has it all";
        write_bytes(to + "/config.json", "{}");
        write_bytes(to + "/model.safetensors", std::string(5000, 'w'));
        return true;
      }};
  try {
    registry_->ensure_merged_archive(small, merger, 0, "alice", 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("30000 bytes: a tenant may have 35000 "
                                        "(--max-archive-bytes); download the adapter's archive"));
  }
  EXPECT_TRUE(fs::exists(tar)) << "nothing goes for what is refused";
  EXPECT_TRUE(registry_->ensure_merged_archive(small, merger, 1, "alice", 1));
  EXPECT_FALSE(fs::exists(tar));
  const auto made = registry_->touch_archive(small, 1, CheckpointRegistry::Archive::kMerged);
  ASSERT_TRUE(made);
  EXPECT_EQ(fs::file_size(*made) % 512, 0u);
  EXPECT_FALSE(registry_->touch_archive(small, 1));
  int num_entries = 0;
  for (const auto& entry : fs::directory_iterator(data_->temporary())) {
    EXPECT_EQ(entry.path(), *made);
    ++num_entries;
  }
  EXPECT_EQ(num_entries, 1);
}

TEST_F(Registry, RefusesTheStateOfAnotherDataDirectory) {
  finish(save("a"));
  registry_.reset();
  const DataDir other(dir_.path() + "/other");
  EXPECT_THAT(error_of([&] { CheckpointRegistry(other, *store_, RegistryOptions{}); }),
              HasSubstr("another data directory"));
  EXPECT_EQ(checkpoints_of(data_->database(), "s:train:0", 1000).size(), 1u);
}

// A second server that got the lock of a database for a moment: the first one's runs go on.
TEST_F(Registry, AStoreOfAnotherDataDirectoryIsNotTouched) {
  RunRow run;
  run.id = "s:train:0";
  run.tenant = "alice";
  EXPECT_TRUE(store_->add_run(run));
  const int64_t boot = store_->boot();
  registry_.reset();
  store_.reset();
  const DataDir other(dir_.path() + "/other");
  EXPECT_THAT(
      error_of([&] { StateStore(open_sqlite(data_->database()), 2000, other.fingerprint()); }),
      HasSubstr("another data directory"));
  const auto sql = open_sqlite(data_->database());
  EXPECT_EQ(sql->run("SELECT value FROM meta WHERE name = 'boot'", {}).rows[0][0], SqlValue(boot));
  EXPECT_EQ(sql->run("SELECT state FROM runs", {}).rows[0][0], SqlValue(std::string("live")));
}

UrlSigner::Claim claim_of(const std::string& url) {
  const auto field = [&](const std::string& name) {
    const size_t begin = url.find(name + "=") + name.size() + 1;
    return url.substr(begin, url.find('&', begin) - begin);
  };
  const size_t id = url.find("/files/") + 7;
  const size_t file = url.find('/', id) + 1;
  return {url.substr(id, file - id - 1), url.substr(file, url.find('?') - file), field("expires"),
          field("tenant"), field("token")};
}

TEST_F(Registry, SignedUrlsServeOneFileForAWhile) {
  using Verdict = UrlSigner::Verdict;
  const CheckpointRow row = finish(save("a"));
  const UrlSigner signer(data_->secret(), *store_, 3600, [](const std::string&) { return true; });
  const int64_t expires = signer.expiry(row, 1000.5);
  EXPECT_EQ(expires, 4600);
  const std::string url =
      signer.make_signed_url("http://h:1", row, "adapter_config.json", "alice", expires, 1000);
  EXPECT_TRUE(url.starts_with("http://h:1/api/v1/files/" + row.id + "/adapter_config.json?"));
  EXPECT_EQ(url.find("alice"), std::string::npos);
  const UrlSigner::Claim good = claim_of(url);
  std::optional<CheckpointRow> found;
  std::string whose;
  EXPECT_EQ(signer.verify_claim(good, 4599, found, whose), Verdict::kGood);
  EXPECT_EQ(whose, "alice");
  EXPECT_EQ(found->id, row.id);
  EXPECT_EQ(signer.verify_claim(good, 4600, found, whose), Verdict::kGone);
  std::vector<UrlSigner::Claim> wrong(6, good);
  wrong[0].checkpoint_id = "nobody";
  wrong[1].file = "adapter_model.safetensors";
  wrong[2].expires = "9999";
  wrong[3].tenant_number = std::to_string(store_->intern_tenant("bob", 1000));
  wrong[4].token[3] = wrong[4].token[3] == 'a' ? 'b' : 'a';
  wrong[5].token.clear();
  faults_->away = true;  // one that is wrong asks the store for nothing
  for (const UrlSigner::Claim& claim : wrong) {
    EXPECT_EQ(signer.verify_claim(claim, 1100, found, whose), Verdict::kWrong);
  }
  faults_->away = false;
  const UrlSigner::Claim bob = claim_of(
      signer.make_signed_url("http://h:1", row, "adapter_config.json", "bob", expires, 1000));
  EXPECT_EQ(signer.verify_claim(bob, 1100, found, whose), Verdict::kWrong);
  store_->set_public(row.id, true);
  EXPECT_EQ(signer.verify_claim(bob, 1100, found, whose), Verdict::kGood);
  store_->delete_checkpoint(row.id, 1200);
  EXPECT_EQ(signer.verify_claim(good, 1200, found, whose), Verdict::kGone);
  registry_->sweep(1200, 1200);
  EXPECT_EQ(signer.verify_claim(good, 1200, found, whose), Verdict::kGone);
}

TEST_F(Registry, ASignedUrlEndsWithItsCheckpoint) {
  CheckpointSave brief = save("a");
  brief.ttl_seconds = 10;
  const CheckpointRow row = finish(brief);
  const UrlSigner signer(data_->secret(), *store_, 3600, [](const std::string&) { return true; });
  EXPECT_EQ(signer.expiry(row, 1000), 1010);
}

TEST(TinkerPaths, HaveExactlyThreeParts) {
  const TinkerPath path = parse_tinker_path("tinker://s1:train:0/sampler_weights/step.0_1-a");
  EXPECT_EQ(path.run_id, "s1:train:0");
  EXPECT_EQ(path.kind, CheckpointKind::kSampler);
  EXPECT_EQ(path.text(), "tinker://s1:train:0/sampler_weights/step.0_1-a");
  for (const char* bad :
       {"", "/etc/passwd", "tinker://", "tinker://a", "tinker://a/weights", "tinker://a/weights/",
        "tinker:///weights/a", "tinker://a/other/b", "tinker://a/weights/b/c",
        "tinker://a/weights/..", "tinker://a/weights/b c", "file://a/weights/b",
        "tinker://a/weights/\n"}) {
    EXPECT_THAT(error_of([&] { parse_tinker_path(bad); }), HasSubstr("want tinker://")) << bad;
  }
  for (const std::string& bad :
       {std::string("../x"), std::string("a/b"), std::string(), std::string(300, 'a'),
        std::string("."), std::string("a\0b", 3), std::string("\xc3\xa9")}) {
    EXPECT_THAT(error_of([&] { check_checkpoint_name("path", bad); }), HasSubstr("path: name"));
  }
  EXPECT_NO_THROW(check_checkpoint_name("path", std::string(255, 'a')));
}

}  // namespace
}  // namespace strata::server
