// SPDX-License-Identifier: Apache-2.0
// The REST handlers behind the route table, over SQLite and real files.
#include "server/tinker/rest/rest.h"

#include "base/crypto.h"
#include "tests/server/tinker/rest/rest_fixture.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> strings(const json::value& list, const char* key) {
  std::vector<std::string> out;
  for (const json::value& item : list.as_array()) out.emplace_back(item.at(key).as_string());
  return out;
}

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

// A message would end there.
TEST_F(RestTest, ANulInAParameterIsToldAsSuch) {
  save("a");
  for (const char* target : {"training_runs/s-alice:train:0/checkpoints/weights/a/archive?merged=",
                             "sessions?limit=", "training_runs?access_scope="}) {
    const Response refused = call("GET", std::string("/api/v1/") + target + "%00x%c3%a9");
    EXPECT_EQ(refused.status, 400) << target;
    EXPECT_THAT(refused.body, HasSubstr("got '\\\\x00x\xc3\xa9', want")) << target;
  }
}

// All pass the checks of their handler, and then stand in line.
TEST_F(RestTest, OfCopiesThatRaceForANumberOneIsMade) {
  save("a");
  std::promise<void> go;
  worker_.post("alice", [gone = go.get_future().share()] { gone.wait(); });
  std::vector<std::future<Response>> answers;
  for (int i = 0; i < 3; ++i) {
    answers.push_back(begin(
        "POST", "/api/v1/copy_weights", "alice",
        R"({"source_path":"tinker://s-alice:train:0/weights/a","session_id":"s-alice","model_seq_id":7})"));
  }
  go.set_value();
  EXPECT_EQ(answers[0].get().status, 200);
  for (size_t i = 1; i < 3; ++i) {
    const Response refused = answers[i].get();
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_THAT(refused.body, HasSubstr("model_seq_id: 7 of session s-alice is in use"));
  }
}

TEST_F(RestTest, ACopyIsHeldAgainstItsTenantsDisk) {
  save("a");
  ok("POST", std::string(kRun) + "/checkpoints/weights/a/publish");
  const Response refused = call("POST", "/api/v1/copy_weights", "bob",
                                R"({"source_path":"tinker://s-alice:train:0/weights/a"})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("--quota bob:disk-bytes=30"));
  EXPECT_EQ(store_lists_.count_checkpoints("bob", true, wall_seconds()), 0);
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
        Case{"bytes=x-y", 200, 0, 10}, Case{"bytes=18446744073709551616-", 416, 0, 0},
        Case{"bytes=3-99999999999999999999", 206, 3, 7}, Case{"Bytes=0-0", 206, 0, 1},
        Case{"byte=0-0", 200, 0, 10}}) {
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
  std::filesystem::remove(*registry_.touch_archive(row, 0));
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

// Asking again would not help.
TEST_F(RestTest, AFileThatNoArchiveHoldsIsToldSo) {
  const CheckpointRow row = save("a");
  const std::string file = registry_.folder(row) + "/optimizer.safetensors";
  std::ofstream(file) << "x";
  std::filesystem::resize_file(file, uint64_t{8} << 30);  // of holes
  const Response refused =
      call("GET", "/api/v1/" + std::string(kRun) + "/checkpoints/weights/a/archive", "alice");
  EXPECT_EQ(refused.status, 413);
  EXPECT_NE(refused.body.find("optimizer.safetensors has 8589934592 bytes"), std::string::npos)
      << refused.body;
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
  router_.match_route(request);
  router_.dispatch(std::move(request), [answer](Response r) { answer->set_value(std::move(r)); });
  store_.delete_checkpoint(row.id, wall_seconds());
  registry_.sweep(wall_seconds() + 86400, 0);
  EXPECT_TRUE(std::filesystem::exists(registry_.folder(row)));
  hold.set_value();
  EXPECT_EQ(answer->get_future().get().status, 200);
  archives_.stop();  // the job has gone, and its lease
  registry_.sweep(wall_seconds() + 86400, 0);
  EXPECT_FALSE(std::filesystem::exists(registry_.folder(row)));
  EXPECT_TRUE(registry_.list_downloadable_files(row).empty());
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
    router_.match_route(request);
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
  std::string key = "k";
  const auto copy = [&](const std::string& name) {
    return call("POST", "/api/v1/copy_weights", "alice",
                R"({"source_path":"tinker://s-alice:train:0/weights/)" + name + "\"}",
                {{"x-idempotency-key", key}});
  };
  const Response first = copy("a");
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(copy("a").body, first.body);
  EXPECT_EQ(copy("b").status, 409);
  key = std::string(256, 'k') + "1";
  const Response other = copy("a");
  EXPECT_EQ(other.status, 200);
  EXPECT_NE(other.body, first.body);
  EXPECT_EQ(copy("a").body, other.body);
  key.back() = '2';
  EXPECT_EQ(copy("b").status, 200) << "a long key is not cut";
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
