// SPDX-License-Identifier: Apache-2.0
// The service against a fake dispatch: time limits, faults of the store, and what they leave.
#include "server/tinker/service/service.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ServiceOptions session_timeout(double seconds) {
  ServiceOptions options;
  options.session_timeout = seconds;
  return options;
}

TEST(Service, ASilentSessionEnds) {
  House house(session_timeout(300));
  const std::string session = house.session();
  const double begin = now_seconds();
  for (int second = 0; second <= 310; ++second) house.service().tick(begin + second);
  EXPECT_THAT(house.ended, ElementsAre(session));
}

// Everybody else is served meanwhile.
TEST(Service, ThousandsThatFallSilentAtOnceEndSomeAtATick) {
  House house(session_timeout(300));
  constexpr size_t kSessions = 500;
  for (size_t i = 0; i < kSessions; ++i) house.session("tenant" + std::to_string(i));
  double now = now_seconds();
  for (int second = 0; second < 290; ++second) house.service().tick(now += 1);
  EXPECT_THAT(house.ended, IsEmpty());
  size_t most = 0;
  for (int i = 0; i < 200 && house.ended.size() < kSessions; ++i) {
    const size_t before = house.ended.size();
    house.service().tick(now += i < 20 ? 1 : 0.1);
    most = std::max(most, house.ended.size() - before);
  }
  EXPECT_EQ(house.ended.size(), kSessions);
  EXPECT_LE(most, 50u);
}

// A process that was frozen, or an I/O thread that hung, could not read a sign of life.
// Passes and samples alone: signs of life and polls are read however late the thread is.
TEST(Service, AThreadThatIsBehindTakesNoNewWork) {
  House house;
  const Handler none = [](Request&&, const Respond&) {};
  Request request;
  request.tenant = "alice";
  const Route pass{.method = "POST", .pattern = "x", .handler = none, .size = BodySize::kData};
  const Route beat{.method = "POST", .pattern = "y", .handler = none, .effect = Effect::kUpkeep};
  const auto admit = [&](const Route& route) {
    request.route = &route;
    const auto refused = house.service().charge_request(request);
    return refused ? refused->status : 200;
  };
  double now = now_seconds();
  house.service().tick(now);
  house.service().tick(now += 60);
  EXPECT_EQ(admit(pass), 200) << "a standstill that is over";
  house.service().tick(now += 2);
  house.service().tick(now += 2);
  EXPECT_EQ(admit(pass), 503);
  EXPECT_EQ(admit(beat), 200);
  for (int i = 0; i < 3; ++i) house.service().tick(now += 0.1);
  EXPECT_EQ(admit(pass), 200) << "it has caught up";
}

TEST(Service, AStandstillIsNoSilence) {
  const double before = now_seconds();
  House house(session_timeout(300));
  const std::string session = house.session();
  const double begin = now_seconds();
  const double thawed = begin + 3600;
  house.service().tick(thawed);  // the first one: the freeze began before it
  EXPECT_THAT(house.ended, IsEmpty());
  // It began when the service was made, so between these two; rounding keeps the order.
  EXPECT_GE(house.excused, thawed - begin);
  EXPECT_LE(house.excused, thawed - before);
  for (int second = 1; second <= 290; ++second) house.service().tick(thawed + second);
  EXPECT_THAT(house.ended, IsEmpty());
  for (int second = 291; second <= 310; ++second) house.service().tick(thawed + second);
  EXPECT_THAT(house.ended, ElementsAre(session));
}

// A full disk or a database that is away: everything that needs no store goes on, and what does is
// done when it is back.
TEST(Service, AStoreThatIsAwayStopsNoTimer) {
  House house(session_timeout(20));
  const std::string session = house.session();
  const std::string model = house.model(session);
  const Response step = house.post("optim_step", R"({"model_id":")" + model + R"(","seq_id":1})");
  ASSERT_EQ(step.status, 200) << step.body;
  EXPECT_EQ(house.poll(House::text(step, "request_id")).status, 0);  // parked
  double now = now_seconds();
  house.service().tick(now);
  EXPECT_EQ(house.call("GET", "readyz").status, 200);
  house.faults().away = true;
  for (int second = 0; second < 29; ++second) house.service().tick(++now);
  EXPECT_EQ(house.service().futures().num_parked(), 1);
  for (int second = 0; second < 3; ++second) house.service().tick(++now);
  EXPECT_EQ(house.service().futures().num_parked(), 0);  // answered 408
  EXPECT_EQ(house.service().sessions().size(), 1u);      // its end could not be written
  EXPECT_EQ(house.call("GET", "healthz").status, 200);
  EXPECT_THAT(house.service().why_not_ready(now), HasSubstr("away"));
  EXPECT_THAT(house.watch().metrics().render_prometheus({}, {}, house.usage()),
              HasSubstr("strata_faults_total{step=\"end_session\"}"));
  house.faults().away = false;
  for (int second = 0; second < 12; ++second) house.service().tick(++now);
  EXPECT_THAT(house.ended, ElementsAre(session));
  EXPECT_EQ(house.service().why_not_ready(now), "");
}

// A database that was lost is looked for between the sweeps, and what expired goes when it is back.
TEST(Service, AStoreThatWasLostIsLookedForAndSweptWhenItIsBack) {
  House house(session_timeout(20));
  house.holds_jobs = true;
  const std::string session = house.session();
  double now = now_seconds();
  house.service().tick(now);
  house.run_aside();
  house.faults().away = house.faults().lost = true;
  EXPECT_THAT(house.service().why_not_ready(now), HasSubstr("away"));
  for (int second = 0; second < 30; ++second) {
    house.service().tick(++now);
    house.run_aside();
  }
  EXPECT_THAT(house.ended, IsEmpty());
  house.faults().away = false;
  house.service().tick(now += 0.1);
  house.run_aside();
  EXPECT_FALSE(house.faults().lost);
  EXPECT_THAT(house.ended, IsEmpty());
  house.service().tick(now += 0.1);
  EXPECT_THAT(house.ended, ElementsAre(session));
}

// Pieces of a sweep that is under way are not begun any more; what is left is the next start's.
TEST(Service, AShutdownEndsASweepBetweenItsPieces) {
  House house(session_timeout(20), {.piece_seconds = 0});
  for (int i = 0; i < 100; ++i) {  // of many pieces
    SessionRow row;
    row.id = fmt::format("old{}", i);
    row.tenant = "alice";
    house.store().ensure_session(row, {});
    house.store().end_session(row.id, "finished", "", "", wall_seconds() - 31 * 86400.0);
  }
  house.holds_jobs = house.holds_turns = true;
  const auto piece = [&] {
    house.run_aside();
    while (house.turn() > 0) {
    }
    return house.num_aside();
  };
  house.service().tick(now_seconds() + 12);
  EXPECT_EQ(house.num_aside(), 2u);  // usage does not wait for it
  EXPECT_EQ(piece(), 1u);
  EXPECT_EQ(piece(), 1u);
  house.service().begin_shutdown();
  EXPECT_EQ(piece(), 0u);
}

// Where the disk is too full for a line of usage, what may go has to go all the more.
TEST(Service, AFullDiskIsSweptAllTheSame) {
  House house(session_timeout(20));
  const std::string session = house.session();
  CheckpointSave save;
  save.path = {house.model(session), CheckpointKind::kWeights, "gone"};
  save.tenant = "alice";
  const std::string dir = house.registry().begin_save();
  write_file_atomic(dir + "/adapter_config.json", "{}");
  const CheckpointRow row = house.registry().finish_save(dir, save, wall_seconds());
  ASSERT_TRUE(house.store().delete_checkpoint(row.id, wall_seconds()));
  house.faults().statement = "INSERT INTO usage_by_key";
  house.usage().charge("alice", "key", UsageKind::kRequests, 1, now_seconds());
  double now = now_seconds();
  for (int second = 0; second < 12; ++second) house.service().tick(++now);
  EXPECT_FALSE(file_exists(house.registry().folder(row)));
  EXPECT_THAT(house.service().why_not_ready(now), HasSubstr("away"));
}

// The end of a session with thousands of steps in line keeps nobody else waiting.
TEST(Service, ThousandsOfResultsAreSettledSomeAtATurn) {
  House house;
  house.holds_turns = true;
  const std::string model = house.model(house.session());
  std::vector<std::string> requests;
  std::vector<api::Event> events;
  for (int i = 1; i <= 600; ++i) {
    const Response step = house.post(
        "optim_step", R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(i) + "}");
    requests.push_back(House::text(step, "request_id"));
    events.emplace_back(api::RequestId{requests.back()},
                        api::Failure{api::FaultCategory::kUser, "first"});
  }
  const auto settled = [&] { return 600 - house.service().futures().num_pending(); };
  ASSERT_EQ(settled(), 0u);
  house.service().post(std::move(events));
  ASSERT_EQ(settled(), 256u);
  house.settle(requests.back(), api::Failure{api::FaultCategory::kUser, "second"});
  EXPECT_EQ(settled(), 256u) << "it is behind those that came before";
  EXPECT_EQ(house.turn(), 1u);
  EXPECT_EQ(settled(), 512u);
  EXPECT_EQ(house.turn(), 0u);
  EXPECT_EQ(settled(), 600u);
  EXPECT_THAT(house.poll(requests.back()).body, HasSubstr("first"));
}

TEST(Service, AShutdownSettlesWhatWasTold) {
  House house;
  house.holds_turns = true;
  const std::string model = house.model(house.session());
  std::vector<api::Event> events;
  for (int i = 0; i < 300; ++i)
    events.emplace_back(api::RequestId{"none"}, api::Failure{api::FaultCategory::kUser, ""});
  const std::string request = house.step(model);
  events.emplace_back(api::RequestId{request}, api::Failure{api::FaultCategory::kUser, "told"});
  house.service().post(std::move(events));
  house.service().handle_all_posted();
  house.service().fail_pending();
  EXPECT_THAT(house.poll(request).body, HasSubstr("told"));
}

// The store fails while failures are noted: each result of the batch reaches its future.
TEST(Service, OneFaultLosesNoOtherResult) {
  House house;
  const std::string session = house.session();
  std::vector<std::string> requests;
  std::vector<api::Result> results;
  for (int i = 0; i < 3; ++i) {
    const Response made =
        house.post("create_model", R"({"session_id":")" + session + R"(","model_seq_id":)" +
                                       std::to_string(i) +
                                       R"(,"base_model":"tiny","lora_config":{"rank":8}})");
    requests.push_back(House::text(made, "request_id"));
    results.push_back({{requests.back()}, api::Failure{api::FaultCategory::kUser, "no slot"}});
  }
  results[2].outcome = api::Done{};
  house.faults().away = true;
  house.service().post({results.begin(), results.end()});
  house.faults().away = false;
  EXPECT_THAT(house.poll(requests[0]).body, HasSubstr("no slot"));
  EXPECT_THAT(house.poll(requests[1]).body, HasSubstr("no slot"));
  EXPECT_THAT(house.poll(requests[2]).body, HasSubstr("create_model"));
  EXPECT_EQ(house.service().models().size(), 1u);
}

// Of files, on the thread that writes them: what comes of it can neither be told nor taken back.
struct Broken : Completion {
  Response finish(const api::Outcome&) override { throw std::bad_alloc(); }
  void undo() override { throw std::bad_alloc(); }
  [[nodiscard]] bool writes_files() const override { return true; }
};

// Its fault cannot be told either, and what was told next is.
struct BrokenHere : Broken {
  [[nodiscard]] bool writes_files() const override { return false; }
};

TEST(Service, AFutureThatCannotFailStopsNoOther) {
  House house;
  const std::string other = house.step(house.model(house.session()));
  api::Command command =
      house.service().new_command("alice", "", api::BaseId{0}, FutureKind::kTraining);
  command.op = api::OptimStep{};
  const std::string broken = command.request.text;
  ASSERT_EQ(house.service()
                .submit(std::move(command), {.completion = std::make_shared<BrokenHere>()})
                .status,
            200);
  house.poll(broken, [](const Response&) { throw std::bad_alloc(); });
  std::vector<api::Event> events;
  events.emplace_back(api::RequestId{broken}, api::Done{});
  events.emplace_back(api::RequestId{other}, api::Failure{api::FaultCategory::kUser, "told"});
  EXPECT_NO_THROW(house.service().post(std::move(events)));
  EXPECT_THAT(house.poll(other).body, HasSubstr("told"));
}

TEST(Service, EveryFutureEndsAlsoWhereItsAnswerCannotBeMade) {
  House house;
  house.holds_jobs = true;
  api::Command command =
      house.service().new_command("alice", "", api::BaseId{0}, FutureKind::kTraining);
  command.op = api::OptimStep{};
  const std::string request = command.request.text;
  ASSERT_EQ(
      house.service().submit(std::move(command), {.completion = std::make_shared<Broken>()}).status,
      200);
  house.settle(request, api::Done{});
  ASSERT_EQ(house.num_aside(), 1u);
  EXPECT_NO_THROW(house.run_aside());
  EXPECT_EQ(house.service().futures().num_pending(), 0u);
  EXPECT_THAT(house.poll(request).body, HasSubstr("the server failed on this request"));
}

}  // namespace
}  // namespace strata::server
