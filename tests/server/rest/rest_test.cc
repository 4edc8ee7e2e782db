// SPDX-License-Identifier: Apache-2.0
// The REST handlers behind the route table, over SQLite and real files.
#include "server/rest/rest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "server/crypto.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

namespace json = boost::json;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RestTest : public ::testing::Test {
 protected:
  RestTest()
      : data_(dir_.path() + "/data"),
        store_(open_sqlite(data_.database()), wall_seconds()),
        registry_(data_, store_, {}),
        signer_(data_.secret(), store_, 3600,
                [this](const std::string& tenant) { return tenant != keyless_; }),
        names_({"base=" + dir_.path()}, {}, {}),
        rest_({store_,
               registry_,
               signer_,
               worker_,
               archives_,
               usage_,
               merges_,
               names_,
               {.bytes = {100},
                .write = [this](size_t, const std::string& from, const std::string& to) {
                  return merge_(from, to);
                }}}) {
    rest_.add_routes(router_);
    for (const char* tenant : {"alice", "bob"}) {
      SessionRow session;
      session.id = std::string("s-") + tenant;
      session.tenant = tenant;
      session.user_metadata = R"({"who":"me"})";
      session.display_name = "a \"name\"";
      store_.add_session(session, {});
      add_run(tenant, 0);
    }
  }

  std::string add_run(const std::string& tenant, int64_t seq) {
    RunRow run;
    run.tenant = tenant;
    run.session_id = "s-" + tenant;
    run.model_seq = seq;
    run.id = *run.session_id + ":train:" + std::to_string(seq);
    run.created_at = run.last_request_at = 1'700'000'000;
    run.base_model = "base";
    run.lora.rank = 8;
    run.user_metadata = R"({"renderer_name":"role_colon"})";
    store_.add_run(run);
    return run.id;
  }
  CheckpointRow save(const std::string& name, CheckpointKind kind = CheckpointKind::kWeights,
                     const std::string& base = "base") {
    const std::string dir = registry_.begin();
    write_bytes(dir + "/adapter_model.safetensors", "0123456789");
    write_bytes(dir + "/adapter_config.json", "{}");
    CheckpointSave save;
    save.path = {"s-alice:train:0", kind, name};
    save.tenant = "alice";
    save.base_model = base;
    save.user_metadata = R"({"step":"1"})";
    return registry_.finish(dir, save, wall_seconds());
  }

  Response call(const std::string& method, const std::string& target,
                const std::string& tenant = "alice", const std::string& body = "",
                std::vector<Header> headers = {}) {
    Request request;
    request.method = method;
    request.path = target.substr(0, target.find('?'));
    if (request.path.size() < target.size()) {
      request.query = target.substr(request.path.size() + 1);
    }
    request.tenant = tenant;
    request.body = body;
    request.headers = std::move(headers);
    if (!body.empty()) request.headers.push_back({"content-type", "application/json"});
    request.base_url = "http://h:1";
    auto answer = std::make_shared<std::promise<Response>>();
    router_.find(request);
    router_.dispatch(std::move(request), [answer](Response r) { answer->set_value(std::move(r)); });
    return answer->get_future().get();
  }
  json::value ok(const std::string& method, const std::string& target,
                 const std::string& tenant = "alice", const std::string& body = "",
                 std::vector<Header> headers = {}) {
    const Response response = call(method, "/api/v1/" + target, tenant, body, std::move(headers));
    EXPECT_EQ(response.status, 200) << target << ": " << response.body;
    return json::parse(response.body);
  }
  int status(const std::string& method, const std::string& target,
             const std::string& tenant = "alice", const std::string& body = "") {
    return call(method, "/api/v1/" + target, tenant, body).status;
  }
  Response fetch(const std::string& url, std::vector<Header> headers = {},
                 const std::string& method = "GET") {
    return call(method, url.substr(std::string("http://h:1").size()), "", "", std::move(headers));
  }

  TempDir dir_;
  DataDir data_;
  StateStore store_;
  CheckpointRegistry registry_;
  std::string keyless_;  // a tenant whose keys are gone
  UrlSigner signer_;
  Usage usage_{{}, std::vector{parse_quota("quota", "bob:disk-bytes=30")}, {}};
  Worker worker_;
  Worker archives_{{.name = "archive", .most_waiting = 2, .drops_at_stop = true}};
  Worker merges_{{.name = "merge", .most_waiting = 1, .drops_at_stop = true}};
  BaseNames names_;
  std::function<bool(const std::string& from, const std::string& to)> merge_ =
      [this](const std::string& from, const std::string& to) {
        ++num_merges_;
        write_bytes(to + "/model.safetensors",
                    "base and " + read_bytes(from + "/adapter_model.safetensors"));
        return true;
      };
  std::atomic<int> num_merges_ = 0;
  Rest rest_;
  Router router_;
};

std::vector<std::string> strings(const json::value& list, const char* key) {
  std::vector<std::string> out;
  for (const json::value& item : list.as_array()) out.emplace_back(item.at(key).as_string());
  return out;
}

constexpr const char* kRun = "training_runs/s-alice:train:0";

TEST_F(RestTest, PagesRunsNewestFirst) {
  for (int64_t i = 1; i < 5; ++i) add_run("alice", i);
  const json::value page = ok("GET", "training_runs?limit=2&offset=1");
  EXPECT_THAT(strings(page.at("training_runs"), "training_run_id"),
              ElementsAre("s-alice:train:3", "s-alice:train:2"));
  EXPECT_EQ(page.at("cursor").at("total_count").as_int64(), 5);
  EXPECT_EQ(page.at("cursor").at("limit").as_int64(), 2);
  const json::object& run = page.at("training_runs").at(0).as_object();
  EXPECT_EQ(run.at("base_model").as_string(), "base");
  EXPECT_EQ(run.at("model_owner").as_string(), "alice");
  EXPECT_EQ(run.at("last_request_time").as_string(), "2023-11-14T22:13:20.000Z");
  EXPECT_EQ(run.at("user_metadata").at("renderer_name").as_string(), "role_colon");
  EXPECT_EQ(run.at("lora_rank").as_int64(), 8);
  EXPECT_FALSE(run.contains("last_checkpoint"));
  EXPECT_EQ(status("GET", "training_runs?limit=x"), 400);
  EXPECT_EQ(status("GET", "training_runs?offset=-1"), 400);
  EXPECT_EQ(status("GET", "training_runs?access_scope=all"), 400);
  EXPECT_EQ(ok("GET", "training_runs?access_scope=accessible&project_id=default")
                .at("cursor")
                .at("total_count")
                .as_int64(),
            5);
  EXPECT_EQ(ok("GET", "training_runs?project_id=none").at("cursor").at("total_count").as_int64(),
            0);
}

TEST_F(RestTest, ShowsCheckpointsEverywhereTheyBelong) {
  save("a");
  save("s", CheckpointKind::kSampler);
  save("e", CheckpointKind::kExternal);
  const json::value run = ok("GET", kRun);
  EXPECT_EQ(run.at("last_checkpoint").at("tinker_path").as_string(),
            "tinker://s-alice:train:0/weights/a");
  EXPECT_EQ(run.at("last_sampler_checkpoint").at("checkpoint_id").as_string(), "sampler_weights/s");
  const json::value all = ok("GET", std::string(kRun) + "/checkpoints");
  EXPECT_THAT(strings(all.at("checkpoints"), "checkpoint_type"),
              ElementsAre("external", "sampler", "training"));
  const json::object& one = all.at("checkpoints").at(2).as_object();
  EXPECT_GT(one.at("size_bytes").as_int64(), 12);
  EXPECT_EQ(one.at("public").as_bool(), false);
  EXPECT_EQ(one.at("user_metadata").at("step").as_string(), "1");
  EXPECT_THAT(std::string(one.at("time").as_string()), ::testing::EndsWith("Z"));
  EXPECT_EQ(ok("GET", "checkpoints?limit=1").at("cursor").at("total_count").as_int64(), 3);
}

TEST_F(RestTest, HidesExternalCheckpointsFromOldClients) {
  save("a");
  save("e", CheckpointKind::kExternal);
  for (const std::string& list : {std::string("checkpoints"), std::string(kRun) + "/checkpoints"}) {
    EXPECT_EQ(ok("GET", list, "alice", "", {{"x-stainless-package-version", "0.27.2"}})
                  .at("checkpoints")
                  .as_array()
                  .size(),
              1u);
    for (const char* version : {"0.28.0", "0.38.0", "1.0.0", "", "unreadable"}) {
      EXPECT_EQ(ok("GET", list, "alice", "", {{"x-stainless-package-version", version}})
                    .at("checkpoints")
                    .as_array()
                    .size(),
                2u)
          << version;
    }
  }
}

TEST_F(RestTest, AForeignTenantSeesTheSameAsNothing) {
  save("a");
  const std::string checkpoint = std::string(kRun) + "/checkpoints/weights/a";
  for (const auto& [method, target] :
       std::vector<std::pair<std::string, std::string>>{{"GET", kRun},
                                                        {"GET", std::string(kRun) + "/checkpoints"},
                                                        {"DELETE", checkpoint},
                                                        {"POST", checkpoint + "/publish"},
                                                        {"DELETE", checkpoint + "/publish"},
                                                        {"GET", checkpoint + "/archive"},
                                                        {"GET", "sessions/s-alice"}}) {
    EXPECT_EQ(status(method, target, "bob"), 404) << target;
  }
  EXPECT_EQ(status("PUT", checkpoint + "/ttl", "bob", R"({"ttl_seconds":5})"), 404);
  EXPECT_EQ(status("PUT", "sessions/s-alice/project", "bob", R"({"project_id":"p"})"), 404);
  EXPECT_EQ(ok("GET", "checkpoints", "bob").at("checkpoints").as_array().size(), 0u);
  ok("POST", checkpoint + "/publish");
  ok("POST", checkpoint + "/publish");
  EXPECT_EQ(ok("GET", "checkpoints", "bob").at("checkpoints").as_array().size(), 0u);
  EXPECT_EQ(status("DELETE", checkpoint, "bob"), 404);
  EXPECT_EQ(status("GET", checkpoint + "/archive", "bob"), 200);
}

TEST_F(RestTest, DeletesOnceAndSetsAndClearsTheTtl) {
  save("a");
  const std::string checkpoint = std::string(kRun) + "/checkpoints/weights/a";
  ok("PUT", checkpoint + "/ttl", "alice", R"({"ttl_seconds":3600})");
  EXPECT_TRUE(ok("GET", "checkpoints").at("checkpoints").at(0).as_object().contains("expires_at"));
  ok("PUT", checkpoint + "/ttl", "alice", R"({"ttl_seconds":null})");
  EXPECT_FALSE(ok("GET", "checkpoints").at("checkpoints").at(0).as_object().contains("expires_at"));
  for (const char* bad : {"{}", R"({"ttl_seconds":0})", R"({"ttl_seconds":315360001})",
                          R"({"ttl_seconds":"1"})", "[]", "{"}) {
    EXPECT_EQ(status("PUT", checkpoint + "/ttl", "alice", bad), 400) << bad;
  }
  EXPECT_EQ(status("DELETE", checkpoint), 200);
  EXPECT_EQ(status("DELETE", checkpoint), 404);
  EXPECT_EQ(status("DELETE", std::string(kRun) + "/checkpoints/a"), 400);
  EXPECT_EQ(status("DELETE", std::string(kRun) + "/checkpoints/other/a"), 400);
}

TEST_F(RestTest, ListsSessionsAndMovesThemBetweenProjects) {
  EXPECT_EQ(ok("GET", "sessions").at("sessions").as_array().size(), 1u);
  const json::value session = ok("GET", "sessions/s-alice");
  EXPECT_EQ(session.at("training_run_ids").at(0).as_string(), "s-alice:train:0");
  EXPECT_EQ(session.at("display_name").as_string(), "a \"name\"");
  EXPECT_EQ(session.at("user_metadata").at("who").as_string(), "me");
  EXPECT_EQ(session.at("sampler_ids").as_array().size(), 0u);
  ok("PUT", "sessions/s-alice/project", "alice", R"({"project_id":"p1"})");
  EXPECT_EQ(ok("GET", "training_runs?project_id=p1").at("training_runs").as_array().size(), 1u);
  EXPECT_EQ(status("PUT", "sessions/s-alice/project", "alice", R"({"project_id":"a/b"})"), 400);
}

TEST_F(RestTest, CopiesIntoASessionOrAProject) {
  save("a");
  const std::string source = R"("source_path":"tinker://s-alice:train:0/weights/a")";
  const std::vector<Header> key = {{"x-idempotency-key", "k1"}};
  const std::string body = "{" + source + R"(,"session_id":"s-alice","model_seq_id":7})";
  const json::value copy = ok("POST", "copy_weights", "alice", body, key);
  EXPECT_EQ(copy.at("tinker_path").as_string(), "tinker://s-alice:train:7/weights/a");
  EXPECT_EQ(ok("POST", "copy_weights", "alice", body, key), copy);
  EXPECT_EQ(status("POST", "copy_weights", "alice", body), 400);
  const json::value other =
      ok("POST", "copy_weights", "alice",
         "{" + source + R"(,"destination_project_id":"p2","ttl_seconds":60})");
  EXPECT_NE(other, copy);
  const json::value runs = ok("GET", "training_runs?project_id=p2");
  EXPECT_EQ(runs.at("training_runs").at(0).at("last_checkpoint").at("tinker_path"),
            other.at("tinker_path"));
  EXPECT_EQ(status("POST", "copy_weights", "bob", "{" + source + "}"), 404);
  EXPECT_EQ(
      status("POST", "copy_weights", "alice", "{" + source + R"(,"weights_access_token":"x"})"),
      400);
  EXPECT_EQ(status("POST", "copy_weights", "alice", R"({"source_path":"/etc/passwd"})"), 400);
  EXPECT_EQ(status("POST", "copy_weights", "alice",
                   "{" + source + R"(,"session_id":"s-bob","model_seq_id":1})"),
            404);
}

TEST_F(RestTest, ACopyIsHeldAgainstItsTenantsDisk) {
  save("a");
  ok("POST", std::string(kRun) + "/checkpoints/weights/a/publish");
  const Response refused = call("POST", "/api/v1/copy_weights", "bob",
                                R"({"source_path":"tinker://s-alice:train:0/weights/a"})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("--quota bob:disk-bytes=30"));
  EXPECT_EQ(store_.count_checkpoints("bob", true, wall_seconds()), 0);
}

TEST_F(RestTest, ASignedUrlServesNobodyWithoutAKey) {
  save("e", CheckpointKind::kExternal);
  const json::value links =
      ok("GET", std::string(kRun) + "/checkpoints/external_weights/e/external_weights_urls");
  const std::string url(links.at("urls").at("adapter_model.safetensors").as_string());
  EXPECT_EQ(fetch(url).status, 200);
  keyless_ = "alice";
  EXPECT_EQ(fetch(url).status, 404);
}

TEST_F(RestTest, ServesExternalFilesByTheirSignedUrls) {
  save("e", CheckpointKind::kExternal);
  save("a");
  const std::string target = std::string(kRun) + "/checkpoints/external_weights/e";
  const json::value links = ok("GET", target + "/external_weights_urls");
  const json::object& urls = links.at("urls").as_object();
  ASSERT_EQ(urls.size(), 2u);
  const std::string url(urls.at("adapter_model.safetensors").as_string());
  const Response whole = fetch(url);
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.file->length, 10u);
  EXPECT_THAT(whole.file->path, HasSubstr(data_.checkpoints()));
  EXPECT_EQ(fetch(url, {}, "HEAD").status, 200);
  EXPECT_EQ(fetch(url + "x").status, 404);
  EXPECT_EQ(fetch(url.substr(0, url.find('?'))).status, 404);
  std::string other = url;
  other.replace(other.find("adapter_model.safetensors"), 25, "strata.json");
  EXPECT_EQ(fetch(other).status, 404);
  EXPECT_EQ(status("GET", std::string(kRun) + "/checkpoints/weights/a/external_weights_urls"), 400);
  EXPECT_EQ(status("DELETE", target), 200);
  EXPECT_EQ(fetch(url).status, 410);
}

TEST_F(RestTest, ServesRanges) {
  save("e", CheckpointKind::kExternal);
  const json::value links =
      ok("GET", std::string(kRun) + "/checkpoints/external_weights/e/external_weights_urls");
  const std::string url(links.at("urls").at("adapter_model.safetensors").as_string());
  struct Case {
    const char* range;
    int status;
    uint64_t offset;
    uint64_t length;
  };
  for (const Case& c :
       {Case{"bytes=0-0", 206, 0, 1}, Case{"bytes=2-5", 206, 2, 4}, Case{"bytes=7-", 206, 7, 3},
        Case{"bytes=-3", 206, 7, 3}, Case{"bytes=-30", 206, 0, 10}, Case{"bytes=9-100", 206, 9, 1},
        Case{"bytes=10-", 416, 0, 0}, Case{"bytes=-0", 416, 0, 0}, Case{"bytes=5-2", 200, 0, 10},
        Case{"bytes=0-1,3-4", 200, 0, 10}, Case{"items=0-1", 200, 0, 10},
        Case{"bytes=x-y", 200, 0, 10}, Case{"bytes=18446744073709551616-", 200, 0, 10}}) {
    const Response response = fetch(url, {{"range", c.range}});
    EXPECT_EQ(response.status, c.status) << c.range;
    if (c.status == 416) continue;
    EXPECT_EQ(response.file->offset, c.offset) << c.range;
    EXPECT_EQ(response.file->length, c.length) << c.range;
  }
}

// After a restart tmp is empty, and a URL may still be good: the archive is made again, but not on
// the thread that answers.
TEST_F(RestTest, AnArchiveThatWentIsPackedAside) {
  const CheckpointRow row = save("a");
  const json::value answer = ok("GET", std::string(kRun) + "/checkpoints/weights/a/archive");
  const std::string url(answer.at("url").as_string());
  std::filesystem::remove(*registry_.made_archive(row, 0));
  std::promise<void> hold;
  archives_.post("x", [held = hold.get_future().share()] { held.wait(); });
  const Response packing = fetch(url);
  EXPECT_EQ(packing.status, 503);
  EXPECT_EQ(packing.headers.at(0).name, "retry-after");
  EXPECT_EQ(fetch(url).status, 503);
  hold.set_value();
  for (int i = 0; i < 500 && fetch(url).status == 503; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(fetch(url).status, 200);
}

// Between the request and its job the checkpoint is deleted and swept.
TEST_F(RestTest, AnArchiveThatIsOrderedKeepsItsFiles) {
  const CheckpointRow row = save("a");
  std::promise<void> hold;
  archives_.post("x", [held = hold.get_future().share()] { held.wait(); });
  auto answer = std::make_shared<std::promise<Response>>();
  Request request;
  request.method = "GET";
  request.path = "/api/v1/" + std::string(kRun) + "/checkpoints/weights/a/archive";
  request.tenant = "alice";
  request.base_url = "http://h:1";
  router_.find(request);
  router_.dispatch(std::move(request), [answer](Response r) { answer->set_value(std::move(r)); });
  store_.delete_checkpoint(row.id, wall_seconds());
  registry_.sweep(wall_seconds() + 86400, 0);
  EXPECT_TRUE(std::filesystem::exists(registry_.folder(row)));
  hold.set_value();
  EXPECT_EQ(answer->get_future().get().status, 200);
  archives_.stop();  // the job has gone, and its lease
  registry_.sweep(wall_seconds() + 86400, 0);
  EXPECT_FALSE(std::filesystem::exists(registry_.folder(row)));
  EXPECT_TRUE(registry_.files(row).empty());
}

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
  EXPECT_EQ(ok("GET", target + "?merged=false").at("url").as_string(), plain);
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
  EXPECT_FALSE(registry_.made_archive(row, 0, CheckpointRegistry::Archive::kMerged));
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
  // Where this machine's files lie is nobody's business, and what its disk does no client's fault.
  for (const ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kIo}) {
    const Response fault = faulty(Error(code, data_.path() + "/x: damaged"));
    EXPECT_EQ(fault.status, 503);
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

// A copy is cheap and an archive is not: one tenant's wait for each other, and not without end.
TEST_F(RestTest, ManyArchivesHoldUpNobodyAndAreDroppedAtTheEnd) {
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(save("c" + std::to_string(i)).name);
  std::promise<void> hold;
  archives_.post("x", [held = hold.get_future().share()] { held.wait(); });
  std::vector<std::shared_ptr<std::promise<Response>>> answers;
  for (const std::string& name : names) {
    Request request;
    request.method = "GET";
    request.path = "/api/v1/" + std::string(kRun) + "/checkpoints/weights/" + name + "/archive";
    request.tenant = "alice";
    request.base_url = "http://h:1";
    answers.push_back(std::make_shared<std::promise<Response>>());
    router_.find(request);
    router_.dispatch(std::move(request),
                     [answer = answers.back()](Response r) { answer->set_value(std::move(r)); });
  }
  for (int i = 2; i < 4; ++i) EXPECT_EQ(answers[i]->get_future().get().status, 429) << i;
  // What changes something waits for none of it.
  EXPECT_EQ(status("DELETE", std::string(kRun) + "/checkpoints/weights/c3"), 200);
  std::thread ends([this] { archives_.stop(); });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(answers[i]->get_future().get().status, 503) << i;
  hold.set_value();
  ends.join();
}

// The same key for another copy is a mistake of the client, not the same copy.
TEST_F(RestTest, AnIdempotencyKeyIsForOneRequest) {
  save("a");
  save("b");
  const auto copy = [&](const std::string& name) {
    return call("POST", "/api/v1/copy_weights", "alice",
                R"({"source_path":"tinker://s-alice:train:0/weights/)" + name + "\"}",
                {{"x-idempotency-key", "k"}});
  };
  const Response first = copy("a");
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(copy("a").body, first.body);
  EXPECT_EQ(copy("b").status, 409);
}

TEST_F(RestTest, PacksAnArchive) {
  save("a");
  const json::value answer = ok("GET", std::string(kRun) + "/checkpoints/weights/a/archive");
  const Response tar = fetch(std::string(answer.at("url").as_string()));
  EXPECT_EQ(tar.status, 200);
  EXPECT_EQ(tar.file->length % 512, 0u);
  save("e", CheckpointKind::kExternal);
  EXPECT_EQ(status("GET", std::string(kRun) + "/checkpoints/external_weights/e/archive"), 400);
}

}  // namespace
}  // namespace strata::server
