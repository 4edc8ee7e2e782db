// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are handed out merged into their model.
#include "tests/server/tinker/rest/rest_fixture.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

// A merged model is an archive of its own, made once.
TEST_F(RestTest, AnArchiveMayBeMerged) {
  const CheckpointRow row = save("a");
  const std::string target = std::string(kRun) + "/checkpoints/weights/a/archive";
  const std::string plain(ok("GET", target).at("url").as_string());
  const std::string url(ok("GET", target + "?merged=true").at("url").as_string());
  EXPECT_NE(url, plain);
  ok("GET", target + "?merged=1");
  EXPECT_EQ(num_merges_, 1);
  const Response file = fetch(url);
  ASSERT_EQ(file.status, 200);
  EXPECT_THAT(read_bytes(file.file->path), HasSubstr("base and 0123456789"));
  EXPECT_EQ(fetch(plain).status, 200);
  // Up to the time when it expires, which may be a second later.
  const std::string again(ok("GET", target + "?merged=false").at("url").as_string());
  EXPECT_EQ(again.substr(0, again.find('?')), plain.substr(0, plain.find('?')));
  EXPECT_EQ(status("GET", target + "?merged=yes"), 400);
  EXPECT_EQ(status("GET", target + "?merged=true", "bob"), 404);
  // Of a URL that is older than the archive it is made again.
  std::filesystem::remove(file.file->path);
  EXPECT_EQ(fetch(url).status, 503);
  for (int i = 0; i < 500 && fetch(url).status == 503; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(fetch(url).status, 200);
  EXPECT_EQ(num_merges_, 2);
  // It goes with its checkpoint.
  EXPECT_EQ(status("DELETE", std::string(kRun) + "/checkpoints/weights/a"), 200);
  merges_.stop();  // its leases are gone
  registry_.sweep(wall_seconds() + 86400, 0);
  EXPECT_FALSE(registry_.touch_archive(row, 0, CheckpointRegistry::Archive::kMerged));
}

TEST_F(RestTest, WhatCannotBeMergedIsSaid) {
  save("a");
  save("other", CheckpointKind::kWeights, "gone");
  const auto merged = [&](const std::string& name) {
    return call("GET", "/api/v1/" + std::string(kRun) + "/checkpoints/weights/" + name +
                           "/archive?merged=true");
  };
  const Response other = merged("other");
  EXPECT_EQ(other.status, 400);
  EXPECT_THAT(other.body, HasSubstr("'gone', is not served"));
  const auto faulty = [&](const Error& error) {
    merge_ = [error](const std::string&, const std::string&) -> bool { throw error; };
    return merged("a");
  };
  const Response cannot = faulty(Error(ErrorCode::kInvalidArgument, "tensor 'x' is too large"));
  EXPECT_EQ(cannot.status, 400);
  EXPECT_THAT(cannot.body, HasSubstr("archive: merged: tensor 'x' is too large"));
  // Where this machine's files lie is nobody's business, and what its disk does no client's fault;
  // but who asks for what can never be is not told to ask again.
  const std::pair<ErrorCode, int> codes[] = {{ErrorCode::kInvalidArgument, 400},
                                             {ErrorCode::kUnsupported, 400},
                                             {ErrorCode::kResourceExhausted, 503},
                                             {ErrorCode::kIo, 503}};
  for (const auto& [code, status] : codes) {
    const Response fault = faulty(Error(code, data_.path() + "/x: damaged"));
    EXPECT_EQ(fault.status, status);
    EXPECT_THAT(fault.body, ::testing::Not(HasSubstr(data_.path())));
  }
  EXPECT_EQ(faulty(Error(ErrorCode::kIo, "disk full")).status, 503);
  for (const auto& entry : std::filesystem::directory_iterator(data_.temporary())) {
    ADD_FAILURE() << "left behind: " << entry.path();
  }
  // At the server's end what runs is given up.
  merge_ = [](const std::string&, const std::string&) { return false; };
  EXPECT_EQ(merged("a").status, 503);
}

// A merge takes minutes: adapters' archives do not wait for it.
TEST_F(RestTest, AMergeHoldsUpNoArchive) {
  save("a");
  std::promise<void> begun, hold;
  merge_ = [&](const std::string&, const std::string&) {
    begun.set_value();
    hold.get_future().wait();
    return false;
  };
  const std::string target = std::string(kRun) + "/checkpoints/weights/a/archive";
  std::thread asks([&] { EXPECT_EQ(status("GET", target + "?merged=true"), 503); });
  begun.get_future().wait();
  EXPECT_EQ(status("GET", target), 200);
  hold.set_value();
  asks.join();
}

}  // namespace
}  // namespace strata::server
