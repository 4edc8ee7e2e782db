// SPDX-License-Identifier: Apache-2.0
// The audit log's lines, a file that is full, a file that is rotated; and what requests say that
// they are about.
#include "server/tinker/audit.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>

#include "base/clock.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using strata::testing::error_of;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using ::testing::HasSubstr;

AuditLine line(const std::string& object) {
  return {.time = 1e9,
          .tenant = "alice",
          .key_id = "0123",
          .address = "",
          .action = "POST /api/v1/save_weights",
          .object = object,
          .status = 200};
}

// Lines are numbered in order, from `number` on.
void expect_numbers(const std::string& text, int64_t number) {
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    EXPECT_THAT(text.substr(begin, end - begin),
                ::testing::EndsWith(",\"seq\":" + std::to_string(number) + "}"));
    begin = end + 1;
  }
}

// Until so many lines were written or dropped.
void wait_for(const AuditLog& audit, int64_t lines) {
  const double end = now_seconds() + 10;
  const auto done = [&] { return audit.counts().written + audit.counts().dropped; };
  while (done() < lines && now_seconds() < end) ::usleep(1000);
  EXPECT_EQ(done(), lines);
}

TEST(AuditLog, AppendsALineOfJsonForEach) {
  const TempDir dir;
  const std::string path = dir.file("audit");
  AuditLog(path).add(line("s:train:0"));
  AuditLog(path).add(line("\"quoted\"\n" + std::string(10000, 'x') + "\xff"));
  AuditLog(path).add(line("\xff\xfe"));
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  const std::string text = read_bytes(path);
  expect_numbers(text, 1);
  const size_t first = text.find('\n') + 1, second = text.find('\n', first) + 1;
  EXPECT_EQ(text.substr(0, first),
            R"({"time":"2001-09-09T01:46:40.000Z","tenant":"alice","key":"0123","address":"",)"
            R"("action":"POST /api/v1/save_weights","object":"s:train:0","status":200,"seq":1})"
            "\n");
  const auto object = [](const std::string& json) {
    return std::string(boost::json::parse(json).at("object").as_string());
  };
  EXPECT_EQ(object(text.substr(first, second - first)), "\"quoted\"\n" + std::string(503, 'x'));
  EXPECT_EQ(object(text.substr(second)), "??");
}

TEST(AuditLog, NamesTheOptionOfAFileThatCannotBeOpened) {
  EXPECT_THAT(error_of([] { AuditLog("/nowhere/audit"); }), HasSubstr("--audit /nowhere/audit"));
  // With the fault of that, not of a look at what is not there: in /sys nobody may make a file.
  ASSERT_LT(::open("/sys/audit", O_WRONLY | O_CREAT, 0600), 0);
  const std::string fault = std::strerror(errno);
  ASSERT_NE(fault, std::strerror(ENOENT));
  EXPECT_THAT(error_of([] { AuditLog("/sys/audit"); }), HasSubstr("--audit /sys/audit: " + fault));
}

TEST(AuditLog, AFullDiskDropsLinesAndARotationGoesOn) {
  const TempDir dir;
  const std::string path = dir.file("audit");
  ASSERT_EQ(::symlink("/dev/full", path.c_str()), 0);
  AuditLog audit(path);
  for (int i = 0; i < 5; ++i) audit.add(line("lost"));
  wait_for(audit, 5);
  EXPECT_EQ(audit.counts().dropped, 5);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  audit.reopen();
  audit.add(line("kept"));
  wait_for(audit, 6);
  ASSERT_EQ(::rename(path.c_str(), dir.file("audit.1").c_str()), 0);
  audit.reopen();
  audit.add(line("next"));
  wait_for(audit, 7);
  ASSERT_EQ(::rename(path.c_str(), dir.file("audit.2").c_str()), 0);
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  audit.reopen();  // fails: the file of before stays in use
  audit.add(line("still"));
  wait_for(audit, 8);
  EXPECT_EQ(audit.counts().written, 3);
  EXPECT_THAT(read_bytes(dir.file("audit.1")), HasSubstr("kept"));
  EXPECT_THAT(read_bytes(dir.file("audit.2")), HasSubstr("still"));
}

TEST(AuditLog, ALineThatWasCutIsEndedBeforeTheNext) {
  const TempDir dir;
  const std::string path = dir.file("audit");
  AuditLog audit(path);
  audit.add(line("whole"));
  wait_for(audit, 1);
  const size_t size = read_bytes(path).size();
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight = {.rlim_cur = size + 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  audit.add(line("a cut"));
  wait_for(audit, 2);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  audit.add(line("after"));
  wait_for(audit, 3);
  const std::string text = read_bytes(path);
  EXPECT_EQ(text.size(), size + 10 + 1 + size);
  EXPECT_THAT(text, HasSubstr("\"seq\":1}"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("\"seq\":2}")));  // the one that was cut is missed
  EXPECT_THAT(text, HasSubstr("\"seq\":3}"));
  EXPECT_EQ(text[size + 10], '\n');
  EXPECT_EQ(audit.counts().dropped, 1);
}

TEST(AuditLog, AFileThatOthersMayReadDrawsAWarning) {
  const TempDir dir;
  const std::string path = dir.file("audit");
  strata::testing::write_bytes(path, "");
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  ::testing::internal::CaptureStderr();
  {
    const AuditLog audit(path);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("mode 0644 lets others read it"));
}

// By a crash, or by a disk that was full at the end.
TEST(AuditLog, ALineThatWasCutBeforeTheStartSwallowsNone) {
  const TempDir dir;
  const std::string path = dir.file("audit");
  AuditLog(path).add(line("first"));
  const std::string first = read_bytes(path);
  strata::testing::write_bytes(path, first + first.substr(0, 50));
  AuditLog(path).add(line("second"));
  const std::string text = read_bytes(path);
  const std::string cut = first + first.substr(0, 50) + "\n";
  ASSERT_EQ(text.substr(0, cut.size()), cut);
  expect_numbers(text.substr(cut.size()), 3);  // the one that was cut is missed
}

TEST(AuditLog, ATerminalIsToldNothing) {
  const TempDir dir;
  const std::string path = dir.file("audit");
  AuditLog(path).add(
      line("a\x7f"
           "b\xc2\x9b"
           "c\x1b"
           "d"));
  const std::string text = read_bytes(path);
  EXPECT_THAT(text, HasSubstr("a?b??c\\u001bd"));
}

// A disk that stands still: a pipe that nobody reads.
TEST(AuditLog, AFloodIsBounded) {
  const TempDir dir;
  const std::string path = dir.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto handler = ::signal(SIGPIPE, SIG_IGN);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  {
    AuditLog audit(path);
    const AuditLine long_line = line(std::string(500, 'x'));
    for (int i = 0; i < 20'000; ++i) audit.add(long_line);
    EXPECT_GT(audit.counts().dropped, 0);
    ::close(reader);  // and what is queued fails at once
  }
  ::signal(SIGPIPE, handler);
}

// The end of the server waits for no disk that hangs.
TEST(AuditLog, ADiskThatHangsIsNotWaitedForLong) {
  const TempDir dir;
  const std::string path = dir.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ::signal(SIGPIPE, SIG_IGN);  // for good: the thread may write after this
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  ::testing::internal::CaptureStderr();
  {
    AuditLog audit(path);
    for (int i = 0; i < 1000; ++i) audit.add(line(std::string(500, 'x')));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("lines are lost"));
  ::close(reader);
}

// Objects: the model, session, sampler or path, also of a request that is refused.
TEST(AuditLog, ARequestSaysWhatItIsAbout) {
  House house;
  const std::string session = house.session();
  EXPECT_EQ(house.about(), session);
  const std::string model = house.model(session);
  EXPECT_EQ(house.about(), model);
  house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":1,"path":"a"})");
  EXPECT_EQ(house.about(), "tinker://" + model + "/weights/a");
  house.post("optim_step", R"({"model_id":"nobody","seq_id":1})");
  EXPECT_EQ(house.about(), "nobody");
  house.post(
      "create_sampling_session",
      R"({"session_id":")" + session + R"(","sampling_session_seq_id":3,"base_model":"tiny"})");
  EXPECT_EQ(house.about(), session + ":sample:3");
  house.post("asample", R"({"sampling_session_id":")" + session + R"(:sample:3","seq_id":-1})");
  EXPECT_EQ(house.about(), session + ":sample:3");
  house.post("sessions/" + session + "/finish", "{}");
  EXPECT_EQ(house.about(), session);
}

}  // namespace
}  // namespace strata::server
