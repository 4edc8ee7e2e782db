// SPDX-License-Identifier: Apache-2.0
// The REST handlers behind the route table, over SQLite and real files; a merged model is a file
// that says so.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/tinker/rest/rest.h"
#include "tests/base/accounts.h"
#include "tests/base/temp_dir.h"

namespace strata::server {

namespace json = boost::json;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;

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
               store_lists_,
               registry_,
               signer_,
               worker_,
               lists_,
               archives_,
               reads_,
               usage_,
               merges_,
               names_,
               {.bytes = {100},
                .write = [this](size_t, const std::string& from,
                                const std::string& to) { return merge_(from, to); }},
               {data_.path()}}) {
    rest_.add_routes(router_);
    for (const char* tenant : {"alice", "bob"}) {
      SessionRow session;
      session.id = std::string("s-") + tenant;
      session.tenant = tenant;
      session.user_metadata = R"({"who":"me"})";
      session.display_name = "a \"name\"";
      store_.ensure_session(session, {});
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
    EXPECT_TRUE(store_.add_run(run));
    return run.id;
  }
  CheckpointRow save(const std::string& name, CheckpointKind kind = CheckpointKind::kWeights,
                     const std::string& base = "base") {
    const std::string dir = registry_.begin_save();
    write_bytes(dir + "/adapter_model.safetensors", "0123456789");
    write_bytes(dir + "/adapter_config.json", "{}");
    CheckpointSave save;
    save.path = {"s-alice:train:0", kind, name};
    save.tenant = "alice";
    save.base_model = base;
    save.user_metadata = R"({"step":"1"})";
    return registry_.finish_save(dir, save, wall_seconds());
  }

  // The answer may be a while in coming.
  std::future<Response> begin(const std::string& method, const std::string& target,
                              const std::string& tenant = "alice", const std::string& body = "",
                              std::vector<Header> headers = {}) {
    Request request;
    request.method = method;
    request.path = target.substr(0, target.find('?'));
    if (request.path.size() < target.size()) {
      request.query = target.substr(request.path.size() + 1);
    }
    request.tenant = tenant;
    request.charge = std::make_shared<Charge>(accounts_.open(tenant));
    request.body = body;
    request.headers = std::move(headers);
    if (!body.empty()) request.headers.push_back({"content-type", "application/json"});
    request.base_url = "http://h:1";
    auto answer = std::make_shared<std::promise<Response>>();
    router_.match_route(request);
    router_.dispatch(std::move(request), [answer](Response r) { answer->set_value(std::move(r)); });
    return answer->get_future();
  }
  Response call(const std::string& method, const std::string& target,
                const std::string& tenant = "alice", const std::string& body = "",
                std::vector<Header> headers = {}) {
    return begin(method, target, tenant, body, std::move(headers)).get();
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
  StoreLists store_lists_{open_sqlite_reader(data_.database())};
  CheckpointRegistry registry_;
  std::string keyless_;  // a tenant whose keys are gone
  UrlSigner signer_;
  Usage usage_{{}, std::vector{parse_quota("quota", "bob:disk-bytes=30")}, {}};
  Worker worker_;
  Worker lists_{{.name = "list", .most_waiting = 2, .drops_at_stop = true}};
  Accounts accounts_ = testing::accounts_with(Use::kResponse, 64 << 20);
  Worker archives_{{.name = "archive", .most_waiting = 2, .drops_at_stop = true}};
  Worker reads_{{.name = "download", .drops_at_stop = true}};
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

constexpr const char* kRun = "training_runs/s-alice:train:0";

}  // namespace strata::server
