// SPDX-License-Identifier: Apache-2.0
// A Service over SQLite and real files, called through its routes, with a dispatch that writes down
// what it is given and answers when told to. One thread: jobs for the worker run when run_aside()
// is called, or at once, and what they post back when turn() is, or at once.
#pragma once
#include <algorithm>
#include <boost/json.hpp>
#include <deque>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "server/tinker/operations/operations.h"
#include "server/tinker/service/service.h"
#include "tests/base/temp_dir.h"
#include "tests/server/store/state/faulty_sql.h"

namespace strata::server {

class House {
 public:
  explicit House(ServiceOptions options = ServiceOptions(), const RegistryOptions& disk = {},
                 const std::vector<UsageLimit>& rates = {},
                 const std::vector<UsageLimit>& quotas = {})
      : usage_(rates, quotas, {}),
        faults_(std::make_shared<SqlFaults>()),
        options_(std::move(options)) {
    store_ = std::make_unique<StateStore>(
        std::make_unique<FaultySql>(open_sqlite(data_.database()), faults_), wall_seconds());
    registry_ = std::make_unique<CheckpointRegistry>(data_, *store_, disk);
    options_.futures.secret = data_.secret();
    options_.folders = {data_.path()};
    restart();
  }

  // What was alive and not in the store is gone.
  void restart() {
    router_ = Router();
    service_ = std::make_unique<Service>(options_, parts(), dispatch());
    add_operations(router_, *service_);
  }

  // The answer to a request; status 0 while it is held.
  Response call(const std::string& method, const std::string& path, const std::string& body = "",
                const std::string& tenant = "alice", std::vector<Header> headers = {},
                Scope scope = Scope::kAll) {
    auto answer = std::make_shared<Response>();
    answer->status = 0;
    headers.push_back({"content-type", "application/json"});
    Request request;
    request.method = method;
    request.path = "/api/v1/" + path;
    request.headers = std::move(headers);
    request.body = body;
    request.tenant = tenant;
    request.charge = std::make_shared<Charge>(options_.futures.accounts.open(tenant));
    request.scope = scope;
    request.is_admin = is_admin_;
    request.about = std::make_shared<std::string>();
    about_ = request.about;
    router_.match_route(request);
    router_.dispatch(std::move(request), [answer](Response response) {
      response.body = response.bytes();
      *answer = std::move(response);
    });
    return *answer;
  }
  Response post(const std::string& path, const std::string& body,
                const std::string& tenant = "alice") {
    return call("POST", path, body, tenant);
  }
  Response call_as_admin(const std::string& path) {
    is_admin_ = true;
    const Response response = call("POST", path, "{}", "operator");
    is_admin_ = false;
    return response;
  }
  static std::string text(const Response& response, const char* field) {
    const boost::json::value value = boost::json::parse(response.body);
    const boost::json::value* found = value.as_object().if_contains(field);
    return found == nullptr || !found->is_string() ? "" : std::string(found->as_string());
  }
  std::string session(const std::string& tenant = "alice") {
    return text(post("create_session", "{}", tenant), "session_id");
  }
  Response poll(const std::string& request, const std::string& tenant = "alice") {
    return post("retrieve_future", R"({"request_id":")" + request + "\"}", tenant);
  }
  // One that may be held.
  void poll(const std::string& request, const Respond& respond, const char* accept = "*/*") {
    Request poll;
    poll.method = "POST";
    poll.path = "/api/v1/retrieve_future";
    poll.headers = {{"content-type", "application/json"}, {"accept", accept}};
    poll.body = R"({"request_id":")" + request + "\"}";
    poll.tenant = "alice";
    router_.match_route(poll);
    router_.dispatch(std::move(poll), respond);
  }
  // Makes a model and answers its creation.
  std::string model(const std::string& session, int number = 0, const std::string& base = "tiny",
                    const std::string& tenant = "alice") {
    const Response made =
        post("create_model",
             R"({"session_id":")" + session + R"(","model_seq_id":)" + std::to_string(number) +
                 R"(,"base_model":")" + base + R"(","lora_config":{"rank":8}})",
             tenant);
    settle(text(made, "request_id"), api::Done{});
    return text(made, "model_id");
  }
  // Submits its first step, and tells its request.
  std::string step(const std::string& model) {
    return text(post("optim_step", R"({"model_id":")" + model +
                                       R"(","seq_id":1,"adam_params":{"learning_rate":0.1}})"),
                "request_id");
  }
  void settle(const std::string& request, api::Outcome outcome) {
    std::vector<api::Event> events;
    events.emplace_back(api::RequestId{request}, std::move(outcome));
    service_->post(std::move(events));
  }
  [[nodiscard]] int64_t num_temporary() const {
    const std::filesystem::directory_iterator folders(data_.temporary());
    return std::distance(begin(folders), end(folders));
  }
  [[nodiscard]] size_t num_aside() const { return aside_.size(); }
  void run_aside() {
    for (; !aside_.empty(); aside_.pop_front()) aside_.front()();
  }

  // One more turn of the I/O thread, and how many wait.
  size_t turn() {
    const auto job = std::move(turns_.front());
    turns_.pop_front();
    job();
    return turns_.size();
  }

  // Of the last call.
  [[nodiscard]] const std::string& about() const { return *about_; }

  Service& service() { return *service_; }
  StateStore& store() { return *store_; }
  CheckpointRegistry& registry() { return *registry_; }
  SqlFaults& faults() { return *faults_; }
  Watch& watch() { return watch_; }
  Usage& usage() { return usage_; }
  const DataDir& data() { return data_; }

  std::vector<api::Command> submitted;
  std::vector<std::string> ended, released, cancelled, written, dropped;
  std::vector<int64_t> consumed;                         // numbers
  api::Admission admission = api::Admission::kAccepted;  // of what is submitted from now on
  double excused = 0.0;
  int num_parsed = 0;        // jobs for the threads that read large bodies and write large results
  bool holds_jobs = false;   // of the worker, until run_aside()
  bool holds_turns = false;  // what is posted back, until turn()
  decltype(ServiceParts::fit) fit = {};

 private:
  ServiceParts parts() {
    return {.store = *store_,
            .registry = *registry_,
            .names = names_,
            .bases = {{.id = api::BaseId{0},
                       .dir = "d",
                       .vocab_size = 100,
                       .max_context = 64,
                       .longest_datum = 48}},
            .watch = watch_,
            .usage = usage_,
            .aside =
                [this](const std::string&, std::function<void()> job) {
                  if (!holds_jobs) return job();
                  aside_.push_back(std::move(job));
                },
            .back =
                [this](std::function<void()> job) {
                  if (!holds_turns) return job();
                  turns_.push_back(std::move(job));
                },
            .parse =
                [this](const std::string&, const std::function<void()>& job) {
                  ++num_parsed;
                  job();
                },
            .fit = [this](const auto&... asked) { fit(asked...); }};
  }
  Dispatch dispatch() {
    return {
        .submit =
            [this](api::Command command) {
              if (admission == api::Admission::kAccepted) submitted.push_back(std::move(command));
              return admission;
            },
        .consume = [this](const api::ModelId&, int64_t number) { consumed.push_back(number); },
        .end_session = [this](const api::SessionId& id,
                              const std::string&) { ended.push_back(id.text); },
        .cancel =
            [this](const api::RequestId& request, const std::string&) {
              cancelled.push_back(request.text);
              return true;
            },
        .release = [this](api::BaseId, const api::SnapshotId& id) { released.push_back(id.text); },
        .write_saved =
            [this](const api::RequestId& request) {
              written.push_back(request.text);
              return int64_t{0};
            },
        .drop_saved = [this](const api::RequestId& request) { dropped.push_back(request.text); },
        .parameter_bytes = [](api::BaseId, const api::LoraConfig&) { return int64_t{1000}; },
        .tick = [this](double, double seconds) { excused += seconds; }};
  }

  Usage usage_;
  strata::testing::TempDir dir_;
  DataDir data_{dir_.path() + "/data"};
  std::shared_ptr<SqlFaults> faults_;
  ServiceOptions options_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<CheckpointRegistry> registry_;
  BaseNames names_{std::vector<std::string>{"tiny=" + dir_.path()}, {}, {}};
  std::shared_ptr<std::string> about_;
  bool is_admin_ = false;
  Watch watch_;
  Router router_;
  std::deque<std::function<void()>> aside_, turns_;
  std::unique_ptr<Service> service_;
};

}  // namespace strata::server
