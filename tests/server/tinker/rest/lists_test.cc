// SPDX-License-Identifier: Apache-2.0
// Lists: read elsewhere, in turns, and cut by bytes.
#include <algorithm>
#include <chrono>
#include <future>
#include <latch>
#include <thread>

#include "base/clock.h"
#include "tests/server/tinker/rest/rest_fixture.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

const std::string kLarge = R"({"a":")" + std::string(16'000, 'x') + R"("})";

class Lists : public RestTest {
 protected:
  // In one transaction, since each save is synced.
  void add_checkpoints(int count, const std::string& metadata) {
    const std::unique_ptr<Sql> sql = open_sqlite(data_.database());
    Transaction transaction(*sql);
    for (int i = 0; i < count; ++i) {
      const std::string number = std::to_string(i);
      const std::vector<SqlValue> values = {"row" + number, "n" + number, int64_t{1000 + i},
                                            metadata, lora_text({})};
      sql->run(
          "INSERT INTO checkpoints (id, run_id, tenant, kind, name, number, created_at, "
          "size_bytes, is_public, user_metadata, base_model, lora, files_gone) VALUES (?, "
          "'s-alice:train:0', 'alice', 'weights', ?, ?, 1.5, 10, 0, ?, 'base', ?, 0)",
          values);
    }
    transaction.commit();
  }
  // Every page of a list, as a client asks for them that believes the cursor.
  std::vector<std::string> walk(const std::string& list, const char* rows, const char* id,
                                int64_t total) {
    std::vector<std::string> ids;
    for (int64_t offset = 0; offset < total;) {
      const Response page = call("GET", "/api/v1/" + list + std::to_string(offset));
      EXPECT_LE(page.body.size(), (size_t{1} << 20) + 4096);
      const json::value parsed = json::parse(page.body);
      const json::object& cursor = parsed.at("cursor").as_object();
      EXPECT_EQ(cursor.at("total_count").as_int64(), total);
      EXPECT_EQ(cursor.at("offset").as_int64(), offset);
      const auto limit = cursor.at("limit").as_int64();
      const json::array& shown = parsed.at(rows).as_array();
      EXPECT_EQ(std::ssize(shown), std::min(limit, total - offset));
      for (const json::value& row : shown) ids.emplace_back(row.at(id).as_string());
      if (shown.empty()) break;
      offset += limit;
    }
    return ids;
  }
  // Sends a request whose answer may come later, on any thread.
  std::shared_ptr<std::function<void()>> send(const std::string& target, const Respond& respond) {
    Request request;
    request.method = "GET";
    request.path = "/api/v1/" + target;
    request.tenant = "alice";
    request.on_hang_up = std::make_shared<std::function<void()>>();
    auto hang_up = request.on_hang_up;
    router_.match_route(request);
    router_.dispatch(std::move(request), respond);
    return hang_up;
  }
  std::shared_ptr<std::function<void()>> send(const std::string& target,
                                              std::vector<Response>& answers) {
    return send(target, [&](Response r) { answers.push_back(std::move(r)); });
  }
};

// A worker that is busy until it is let go.
class Busy {
 public:
  explicit Busy(Worker& worker) {
    worker.post("bob", [this] {
      begun_.count_down();
      go_.wait();
    });
    begun_.wait();
  }
  void let_go() { go_.count_down(); }

 private:
  std::latch begun_{1}, go_{1};
};

TEST_F(Lists, AreReadElsewhereInTurns) {
  Busy busy(lists_);
  std::vector<Response> answers;
  const auto hang_up = send("training_runs", answers);
  send("sessions/s-alice", answers);
  const size_t num_early = answers.size();
  send(std::string(kRun) + "/checkpoints", answers);  // one too many of alice's
  if (*hang_up) (*hang_up)();
  busy.let_go();
  std::promise<void> done;
  lists_.post("alice", [&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_EQ(num_early, 0u);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].status, 429);
  EXPECT_THAT(answers[0].body, HasSubstr("too many lists"));
  EXPECT_EQ(answers[1].status, 400);  // who has gone
  EXPECT_EQ(answers[2].status, 200);
}

// Who waits for one when the server stops is told so, and so is who comes afterwards.
TEST_F(Lists, AreAnsweredAtAShutdown) {
  Busy busy(lists_);
  std::promise<int> told;
  std::future<int> status = told.get_future();
  send("training_runs", [&](const Response& r) { told.set_value(r.status); });
  std::thread stops([&] { lists_.stop(); });
  // Before what runs has ended.
  const bool is_told = status.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  busy.let_go();
  stops.join();
  EXPECT_EQ(is_told ? status.get() : 0, 503);
  std::vector<Response> answers;
  send("training_runs", answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].status, 503);
}

TEST_F(Lists, PagesEndAfterSoManyBytes) {
  add_checkpoints(150, kLarge);
  std::vector<std::string> wanted;
  for (int i = 149; i >= 0; --i) wanted.push_back("weights/n" + std::to_string(i));
  for (const std::string& list : {std::string("checkpoints"), std::string(kRun) + "/checkpoints"})
    EXPECT_EQ(walk(list + "?limit=1000&offset=", "checkpoints", "checkpoint_id", 150), wanted);
  std::vector<std::string> runs = {"s-alice:train:0"};
  for (int64_t i = 1; i < 150; ++i) {
    RunRow run;
    run.id = "r" + std::to_string(i);
    run.tenant = "alice";
    run.base_model = "base";
    run.user_metadata = kLarge;
    EXPECT_TRUE(store_.add_run(run));
    runs.insert(runs.begin(), run.id);
  }
  EXPECT_EQ(walk("training_runs?limit=1000&offset=", "training_runs", "training_run_id", 150),
            runs);
}

TEST_F(Lists, PagesOfARunsCheckpoints) {
  add_checkpoints(100, "{}");
  const std::string list = std::string(kRun) + "/checkpoints";
  const json::value page = ok("GET", list + "?limit=3&offset=97");
  EXPECT_EQ(page.at("checkpoints").as_array().size(), 3u);
  EXPECT_EQ(page.at("checkpoints").at(2).at("checkpoint_id").as_string(), "weights/n0");
  EXPECT_EQ(page.at("cursor").at("total_count").as_int64(), 100);
  // Who asks for no page gets all.
  EXPECT_EQ(ok("GET", list).at("checkpoints").as_array().size(), 100u);
  EXPECT_EQ(ok("GET", list).at("cursor").at("limit").as_int64(), 100);
  EXPECT_EQ(ok("GET", list + "?limit=0").at("checkpoints").as_array().size(), 0u);
}

// Of a run that has more than an answer may hold, the newest.
TEST_F(Lists, ARunsCheckpointsWithoutAPageAreBounded) {
  add_checkpoints(1200, kLarge);
  const json::value all = ok("GET", std::string(kRun) + "/checkpoints");
  const size_t shown = all.at("checkpoints").as_array().size();
  EXPECT_GT(shown, 500u);
  EXPECT_LT(shown, 1100u);
  EXPECT_EQ(all.at("checkpoints").at(0).at("checkpoint_id").as_string(), "weights/n1199");
  EXPECT_EQ(all.at("cursor").at("limit").as_int64(), static_cast<int64_t>(shown));
  EXPECT_EQ(all.at("cursor").at("total_count").as_int64(), 1200);
}

TEST_F(Lists, CountAsResponsesWhileTheyAreMade) {
  add_checkpoints(20, kLarge);
  const std::string list = std::string(kRun) + "/checkpoints";
  {
    Charge held = accounts_.open("alice");
    ASSERT_TRUE(held.hold(Use::kResponse, (64 << 20) - 100'000));
    const Response refused = call("GET", "/api/v1/" + list);
    EXPECT_EQ(refused.status, 503);
    EXPECT_THAT(refused.body, HasSubstr("--max-response-bytes"));
    EXPECT_EQ(status("GET", list + "?limit=1"), 200);
  }
  EXPECT_EQ(status("GET", list), 200);
  // The answer is here before the worker that made it has given back what it held.
  const double end = now_seconds() + 10;
  while (accounts_.of(Use::kResponse).used() > 0 && now_seconds() < end) std::this_thread::yield();
  EXPECT_EQ(accounts_.of(Use::kResponse).used(), 0);
}

TEST_F(Lists, NamesAllSamplersOfASession) {
  for (int64_t i = 0; i < 5000; ++i) {
    SamplerRow row;
    row.id = "s-alice:sample:" + std::to_string(i);
    row.session_id = "s-alice";
    row.sampling_seq = i;
    row.tenant = "alice";
    row.base_model = "base";
    store_.ensure_sampler(row);
  }
  const json::value session = ok("GET", "sessions/s-alice");
  const json::array& ids = session.at("sampler_ids").as_array();
  ASSERT_EQ(ids.size(), 5000u);
  EXPECT_EQ(ids[4999].as_string(), "s-alice:sample:4999");
  EXPECT_EQ(session.at("training_run_ids").as_array().size(), 1u);
}

}  // namespace
}  // namespace strata::server
