// The scheduler against a fake engine: order, exactly once, barriers, sharing, ends.
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>

#include "tests/scheduler/fake_engine.h"

namespace strata::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// A scheduler with one fake engine, and what was posted.
struct House {
  explicit House(SchedulerOptions options = {}) : scheduler(options) {}
  Scheduler scheduler;
  FakeEngine engine;
  double now = 0.0;
  int next_request = 0;
  std::map<std::string, std::vector<api::Outcome>> posted;

  Verdict submit(api::Command command) {
    if (command.request.empty()) command.request.text = "r" + std::to_string(next_request++);
    return scheduler.submit(std::move(command), now).verdict;
  }
  bool turn() {
    const api::Capacity capacity = engine.capacity();
    scheduler.tick(now, 0.0);
    const api::Work work = scheduler.next({&capacity, 1}, now);
    post(scheduler.complete(engine.run(work), now));
    return !work.empty();
  }
  void post(std::vector<api::Result> results) {
    for (api::Result& result : results)
      posted[result.request.text].push_back(std::move(result.outcome));
  }
  int run() {
    int turns = 0;
    while (turn()) ++turns;
    return turns;
  }
  [[nodiscard]] const api::Failure* failure(const std::string& request) {
    return posted[request].empty() ? nullptr : std::get_if<api::Failure>(&posted[request][0]);
  }
};

api::Command create(const std::string& model, const std::string& tenant = "t",
                    const std::string& session = "s") {
  return {.request = {"create-" + model},
          .tenant = {tenant},
          .session = {session},
          .model = {model},
          .op = api::CreateModel{}};
}

api::Command op(const std::string& model, int64_t seq, api::Operation operation,
                const std::string& tenant = "t", const std::string& session = "s") {
  return {.request = {model + "-" + std::to_string(seq)},
          .tenant = {tenant},
          .session = {session},
          .model = {model},
          .seq_id = seq,
          .fingerprint = static_cast<uint64_t>(seq),
          .op = std::move(operation)};
}

api::ForwardBackward rows(std::vector<size_t> lengths) {
  api::ForwardBackward out;
  for (const size_t length : lengths) {
    out.data.emplace_back();
    out.data.back().tokens.resize(length, 1);
  }
  return out;
}

api::Command sample(const std::string& request, int64_t prompt, int64_t max_tokens,
                    int64_t num_samples = 1, const std::string& tenant = "t",
                    const std::string& session = "s") {
  api::Sample out;
  out.prompt.resize(static_cast<size_t>(prompt), 1);
  out.max_tokens = max_tokens;
  out.num_samples = num_samples;
  return {.request = {request}, .tenant = {tenant}, .session = {session}, .op = std::move(out)};
}

// Any tenants, models, programs, arrival orders, repeats and turn times: each model runs its
// numbers in order, each request is answered once, and no pass exceeds its budget.
TEST(Scheduler, AnyArrivalOrderGivesTheOrderOfNumbersAndOneAnswerEach) {
  const bool ok = rc::check("order and exactly once", [] {
    House house;
    house.engine.pass_tokens = *rc::gen::inRange<int64_t>(1, 40);
    house.engine.max_rows = *rc::gen::inRange<int64_t>(1, 6);
    std::vector<api::Command> events;
    std::map<std::string, std::vector<std::string>> want;
    const int num_models = *rc::gen::inRange(1, 5);
    for (int m = 0; m < num_models; ++m) {
      const std::string model = "m" + std::to_string(m);
      const std::string tenant = "t" + std::to_string(m % 3);
      house.submit(create(model, tenant));
      want[model].push_back("create-" + model);
      const int length = *rc::gen::inRange(0, 12);
      for (int64_t seq = 1; seq <= length; ++seq) {
        const int kind = *rc::gen::inRange(0, 4);
        api::Operation operation = api::OptimStep{};
        if (kind < 2) {
          const auto lengths =
              *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, 12));
          operation = rows(lengths);
        } else if (kind == 2) {
          operation = api::SaveState{};
        }
        events.push_back(op(model, seq, std::move(operation), tenant));
        want[model].push_back(events.back().request.text);
      }
    }
    const int num_samples = *rc::gen::inRange(0, 6);
    for (int i = 0; i < num_samples; ++i) {
      events.push_back(sample("sample-" + std::to_string(i), 5, *rc::gen::inRange<int64_t>(1, 6),
                              *rc::gen::inRange<int64_t>(1, 4), "t" + std::to_string(i % 3)));
    }
    std::vector<size_t> order(events.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[*rc::gen::inRange<size_t>(0, i)]);
    for (const size_t i : order) {
      RC_ASSERT(house.submit(events[i]) == Verdict::kAccepted);
      if (*rc::gen::inRange(0, 3) == 0) house.turn();
      if (events[i].seq_id > 0 && *rc::gen::inRange(0, 4) == 0) {
        api::Command again = events[i];
        again.request.text += "-again";
        const Submission repeated = house.scheduler.submit(again, 0.0);
        RC_ASSERT(repeated.verdict == Verdict::kDuplicate);
        RC_ASSERT(repeated.request == events[i].request);
      }
    }
    house.run();
    for (auto& [model, requests] : want) RC_ASSERT(house.engine.log[model] == requests);
    for (const api::Command& command : events)
      RC_ASSERT(house.posted[command.request.text].size() == 1u);
    RC_ASSERT(house.engine.largest_pass <= std::max<int64_t>(house.engine.pass_tokens, 12));
    RC_ASSERT(house.scheduler.idle());
    RC_ASSERT(house.scheduler.stats().queued_bytes == 0);
  });
  EXPECT_TRUE(ok);
}

TEST(Scheduler, RowsOfDifferentModelsShareAPass) {
  House house;
  for (const char* model : {"a", "b", "c"}) {
    house.submit(create(model, std::string("tenant-") + model));
    house.submit(op(model, 1, rows({5}), std::string("tenant-") + model));
    house.submit(op(model, 2, api::OptimStep{}, std::string("tenant-") + model));
    house.submit(op(model, 3, rows({5}), std::string("tenant-") + model));
  }
  house.turn();  // creations
  EXPECT_EQ(house.engine.num_passes, 0);
  house.turn();
  EXPECT_EQ(house.engine.num_passes, 1);
  EXPECT_EQ(house.engine.largest_pass, 15);
  house.turn();  // the steps, then the next pass, in one turn
  EXPECT_EQ(house.engine.num_passes, 2);
  EXPECT_TRUE(house.scheduler.idle());
}

// A request is answered when its own rows are done, whatever else is still running.
TEST(Scheduler, AShortRequestDoesNotWaitForALongOne) {
  House house;
  house.submit(create("long", "x"));
  house.submit(create("short", "y"));
  house.turn();
  house.submit(op("long", 1, rows(std::vector<size_t>(100, 4)), "x"));
  house.submit(op("short", 1, rows({4}), "y"));
  house.turn();
  EXPECT_EQ(house.posted["short-1"].size(), 1u);
  EXPECT_EQ(house.posted["long-1"].size(), 0u);
  EXPECT_EQ(house.run(), 25);
  EXPECT_EQ(house.posted["long-1"].size(), 1u);
}

TEST(Scheduler, TenantsThatAreAlwaysBusyGetTheSame) {
  House house;
  for (const char* model : {"a1", "a2", "a3"}) house.submit(create(model, "a"));
  house.submit(create("b", "b"));
  house.turn();
  for (const char* model : {"a1", "a2", "a3"})
    house.submit(op(model, 1, rows(std::vector<size_t>(1000, 3)), "a"));
  house.submit(op("b", 1, rows(std::vector<size_t>(1000, 5)), "b"));
  for (int i = 0; i < 100; ++i) {
    house.turn();
    EXPECT_LE(std::abs(house.engine.tokens["a"] - house.engine.tokens["b"]), 5);
  }
}

// A datum longer than the pass is not passed over for ever by those that fit.
TEST(Scheduler, NothingStarves) {
  House house;
  house.submit(create("small", "x"));
  house.submit(create("large", "y"));
  house.turn();
  house.submit(op("small", 1, rows(std::vector<size_t>(1000, 1)), "x"));
  house.submit(op("large", 1, rows({100}), "y"));
  house.turn();
  house.turn();
  EXPECT_EQ(house.posted["large-1"].size(), 1u);
  // Whoever comes back from idling gets no credit for the time it was away.
  house.submit(op("large", 2, rows(std::vector<size_t>(50, 1)), "y"));
  const int64_t before = house.engine.tokens["y"];
  house.turn();
  EXPECT_LE(house.engine.tokens["y"] - before, 9);
}

TEST(Scheduler, AGapEndsAfterItsTime) {
  House house({.gap_timeout = 10.0});
  house.submit(create("m"));
  house.submit(op("m", 1, api::OptimStep{}));
  house.submit(op("m", 3, rows({2})));
  house.submit(op("m", 4, api::SaveState{}));
  house.run();
  house.now = 9.0;
  house.run();
  EXPECT_EQ(house.posted["m-3"].size(), 0u);
  EXPECT_EQ(house.scheduler.stats().held_training, 2);
  house.now = 11.0;
  house.run();
  ASSERT_NE(house.failure("m-3"), nullptr);
  EXPECT_EQ(house.failure("m-3")->category, api::FaultCategory::kServer);
  EXPECT_THAT(house.failure("m-3")->message, HasSubstr("seq_id 2 did not arrive"));
  EXPECT_NE(house.failure("m-4"), nullptr);
  EXPECT_EQ(house.submit(op("m", 2, rows({2}))), Verdict::kGivenUp);
  EXPECT_EQ(house.submit(op("m", 5, rows({2}))), Verdict::kAccepted);
  house.run();
  EXPECT_THAT(house.engine.log["m"], ElementsAre("create-m", "m-1", "m-5"));
}

// While the process stood still, the missing number could not arrive.
TEST(Scheduler, AStandstillIsNoWaitForAGap) {
  House house({.gap_timeout = 10.0});
  house.submit(create("m"));
  house.submit(op("m", 2, api::OptimStep{}));
  house.run();
  house.now = 1000.0;
  house.scheduler.tick(house.now, 999.0);
  house.run();
  EXPECT_EQ(house.scheduler.stats().held_training, 1);
  house.submit(op("m", 1, api::OptimStep{}));
  house.run();
  EXPECT_THAT(house.engine.log["m"], ElementsAre("create-m", "m-1", "m-2"));
}

TEST(Scheduler, ARefusedSubmissionConsumesItsNumber) {
  House house;
  house.submit(create("m"));
  house.submit(op("m", 2, api::OptimStep{}));
  house.run();
  EXPECT_EQ(house.posted["m-2"].size(), 0u);
  house.scheduler.consume({"m"}, 1, 0.0);
  house.run();
  EXPECT_EQ(house.posted["m-2"].size(), 1u);
}

TEST(Scheduler, DuplicateConflictAndUnknownModelAreTold) {
  House house;
  EXPECT_EQ(house.submit(op("m", 1, api::OptimStep{})), Verdict::kUnknownModel);
  EXPECT_EQ(house.submit(create("m")), Verdict::kAccepted);
  house.run();
  api::Command again = create("m");
  again.request.text = "other";
  const Submission repeated = house.scheduler.submit(again, 0.0);
  EXPECT_EQ(repeated.verdict, Verdict::kDuplicate);
  EXPECT_EQ(repeated.request.text, "create-m");
  again.fingerprint = 1;
  EXPECT_EQ(house.submit(again), Verdict::kConflict);
  house.submit(op("m", 1, api::OptimStep{}));
  api::Command changed = op("m", 1, api::OptimStep{});
  changed.request.text = "changed";
  changed.fingerprint = 99;
  EXPECT_EQ(house.submit(changed), Verdict::kConflict);
  house.run();
  EXPECT_THAT(house.engine.log["m"], ElementsAre("create-m", "m-1"));
}

// Chunk 1 comes last; if the queue is full of what waits for it, it must get in.
TEST(Scheduler, AFullQueueLetsInWhatEverythingWaitsFor) {
  House house({.max_queued_bytes = 4000});
  house.submit(create("m"));
  house.run();
  EXPECT_EQ(house.submit(op("m", 2, rows({400}))), Verdict::kAccepted);
  EXPECT_EQ(house.submit(op("m", 3, rows({400}))), Verdict::kAccepted);
  EXPECT_EQ(house.submit(op("m", 4, rows({400}))), Verdict::kFull);
  EXPECT_EQ(house.submit(op("m", 5, api::SaveState{})), Verdict::kAccepted);  // never 429
  EXPECT_EQ(house.submit(op("m", 3, rows({400}))), Verdict::kDuplicate);
  EXPECT_EQ(house.submit(op("m", 1, rows({400}))), Verdict::kAccepted);
  house.run();
  EXPECT_EQ(house.submit(op("m", 4, rows({400}))), Verdict::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

// A client that sends in order has nothing missing: its bytes stop it like anybody's.
TEST(Scheduler, AFullQueueStopsAClientThatSendsInOrder) {
  House house({.max_queued_bytes = 4000});
  house.submit(create("m"));
  house.run();
  int64_t seq = 1;
  while (house.submit(op("m", seq, rows({400}))) == Verdict::kAccepted && seq < 100) ++seq;
  EXPECT_LE(seq, 4);
  EXPECT_LE(house.scheduler.stats().queued_bytes, 8000);
  house.run();
  EXPECT_EQ(house.submit(op("m", seq, rows({400}))), Verdict::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

TEST(Scheduler, OperationsOfAModelAreCounted) {
  House house({.max_queued_operations = 100});
  house.submit(create("m"));
  for (int64_t seq = 2; seq <= 101; ++seq)
    EXPECT_EQ(house.submit(op("m", seq, api::SaveState{})), Verdict::kAccepted);
  EXPECT_EQ(house.submit(op("m", 102, api::SaveState{})), Verdict::kFull);
  EXPECT_EQ(house.submit(op("m", 50, api::SaveState{})), Verdict::kDuplicate);
  EXPECT_EQ(house.submit(op("m", 1, api::OptimStep{})), Verdict::kAccepted);  // all wait for it
  house.run();
  EXPECT_EQ(house.submit(op("m", 102, api::SaveState{})), Verdict::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

// A walk for each of them took minutes under the lock that everything else needs.
TEST(Scheduler, EndingALongQueueIsOnePass) {
  House house({.max_queued_operations = 1'000'000});
  house.submit(create("m"));
  for (int64_t seq = 1; seq <= 200'000; ++seq) house.submit(op("m", seq, api::OptimStep{}));
  const auto begin = std::chrono::steady_clock::now();
  house.scheduler.end_session({"s"}, "over", 0.0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  house.run();
  EXPECT_EQ(house.posted["m-200000"].size(), 1u);
}

TEST(Scheduler, AFullSampleQueueIsTold) {
  House house({.max_queued_samples = 2});
  EXPECT_EQ(house.submit(sample("a", 3, 2)), Verdict::kAccepted);
  EXPECT_EQ(house.submit(sample("b", 3, 2)), Verdict::kAccepted);
  EXPECT_EQ(house.submit(sample("c", 3, 2)), Verdict::kFull);
  house.turn();
  EXPECT_EQ(house.submit(sample("c", 3, 2)), Verdict::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

TEST(Scheduler, SamplesJoinWhileThereAreRowsAndPages) {
  House house;
  house.engine.max_rows = 3;
  house.submit(sample("many", 4, 4, 5));  // the first row takes 2 pages, each other one 1
  house.turn();
  EXPECT_EQ(house.scheduler.stats().running_samples, 1);
  EXPECT_EQ(house.engine.capacity().running_samples, 3);
  house.run();
  EXPECT_EQ(house.posted["many"].size(), 1u);
  house.engine.pages = 4;
  house.submit(sample("half", 4, 4));
  house.submit(sample("other half", 4, 4));
  house.submit(sample("waits", 4, 4));
  house.turn();
  EXPECT_EQ(house.engine.capacity().running_samples, 2);
  house.run();
  EXPECT_EQ(house.posted["waits"].size(), 1u);
}

// What can never fit is handed to the engine, which refuses it, and what stands behind it goes on.
TEST(Scheduler, ASampleThatNeverFitsIsAnswered) {
  House house;
  house.engine.pages = 4;
  house.submit(sample("whale", 100, 100, 3));
  house.submit(sample("minnow", 4, 4));
  house.run();
  ASSERT_NE(house.failure("whale"), nullptr);
  EXPECT_EQ(house.posted["whale"].size(), 1u);
  EXPECT_EQ(house.failure("minnow"), nullptr);
  EXPECT_EQ(house.posted["minnow"].size(), 1u);
  EXPECT_TRUE(house.scheduler.idle());
}

// A request that has begun holds its prompt's pages between its rows; another that would fit an
// empty cache must not be let in beside it.
TEST(Scheduler, RequestsThatHaveBegunNeverStarveEachOtherOfPages) {
  for (const size_t prompt : {8, 16, 20}) {
    House house;
    house.engine.pages = 8;
    house.engine.max_rows = 1;  // one row at a time: requests are half handed out in between
    for (const char* tenant : {"x", "y", "z"}) house.submit(sample(tenant, prompt, 12, 3, tenant));
    house.submit(sample("whole", 4, 28, 1, "w"));
    house.run();
    for (const char* request : {"x", "y", "z", "whole"}) {
      ASSERT_EQ(house.posted[request].size(), 1u) << request << " " << prompt;
      const api::Failure* failure = house.failure(request);
      if (failure != nullptr) {
        EXPECT_EQ(failure->message, "too large") << prompt;
      }
    }
    EXPECT_TRUE(house.scheduler.idle());
  }
}

TEST(Scheduler, SamplingPagesAreSharedBetweenTenants) {
  House house;
  house.engine.max_rows = 8;
  for (int i = 0; i < 20; ++i) house.submit(sample("x" + std::to_string(i), 4, 4, 1, "x"));
  for (int i = 0; i < 2; ++i) house.submit(sample("y" + std::to_string(i), 4, 4, 1, "y"));
  house.turn();
  for (int i = 0; i < 3; ++i) house.turn();
  EXPECT_EQ(house.posted["y0"].size(), 1u);
  EXPECT_EQ(house.posted["y1"].size(), 1u);
  EXPECT_EQ(house.posted["x6"].size(), 0u);
}

TEST(Scheduler, TrainingAndSamplingShareTime) {
  House house;
  house.engine.train_cost = 5.0;
  house.submit(create("m"));
  house.run();
  house.submit(sample("s", 4, 1000));
  house.engine.pages = 1000;
  house.submit(op("m", 1, rows(std::vector<size_t>(100, 16))));
  for (int i = 0; i < 60; ++i) house.turn();
  const api::Capacity spent = house.engine.capacity();
  EXPECT_NEAR(spent.train_seconds, spent.sample_seconds, 6.0);
  EXPECT_EQ(house.engine.num_decodes, 60);
}

// Saves and loads in line, thousands perhaps, are one a turn, shared by tenant.
TEST(Scheduler, FileWorkHoldsUpNobody) {
  House house;
  for (const char* model : {"a", "b"}) house.submit(create(model, "x"));
  house.submit(create("c", "y"));
  house.run();
  for (const char* model : {"a", "b"}) {
    for (int64_t seq = 1; seq <= 50; ++seq)
      house.submit(op(model, seq, api::LoadState{"dir", false}, "x"));
  }
  house.submit(op("c", 1, api::SaveState{}, "y"));
  house.submit(op("c", 2, rows({4}), "y"));
  house.turn();
  const auto num_loads = [&] {
    return house.engine.log["a"].size() + house.engine.log["b"].size() - 2;
  };
  EXPECT_LE(num_loads(), 1u);
  house.turn();
  EXPECT_LE(num_loads(), 1u);
  EXPECT_EQ(house.posted["c-1"].size(), 1u);
  EXPECT_EQ(house.posted["c-2"].size(), 1u);
  house.run();
  EXPECT_EQ(num_loads(), 100u);
}

TEST(Scheduler, FilesAndSamplingShareTime) {
  House house;
  house.engine.file_cost = 5.0;
  house.engine.pages = 1000;
  house.submit(create("m"));
  house.run();
  house.submit(sample("s", 4, 1000));
  for (int64_t seq = 1; seq <= 100; ++seq) house.submit(op("m", seq, api::SaveState{}));
  for (int i = 0; i < 60; ++i) house.turn();
  const api::Capacity spent = house.engine.capacity();
  EXPECT_NEAR(spent.train_seconds, spent.sample_seconds, 6.0);
}

TEST(Scheduler, AShutdownCountsWhatItDrops) {
  House house;
  house.submit(create("m"));
  house.run();
  house.submit(op("m", 1, api::SaveState{}));
  house.scheduler.begin_shutdown(0.0);
  house.run();
  EXPECT_EQ(house.scheduler.num_dropped(), 0u);
  EXPECT_EQ(house.failure("m-1"), nullptr);
  House other;
  other.submit(create("m"));
  other.run();
  other.submit(op("m", 1, rows({4})));
  other.submit(sample("s", 4, 4));
  other.scheduler.begin_shutdown(0.0);
  other.run();
  EXPECT_EQ(other.scheduler.num_dropped(), 2u);
}

// While copies of adapters wait for the disk, no further one is made; loads go on.
TEST(Scheduler, SavesWaitForTheDisk) {
  House house;
  house.submit(create("m"));
  house.submit(create("n"));
  house.run();
  house.engine.saves = 0;
  house.submit(op("m", 1, api::SaveState{}));
  house.submit(op("n", 1, api::LoadState{"dir", false}));
  house.run();
  EXPECT_EQ(house.posted["m-1"].size(), 0u);
  EXPECT_EQ(house.posted["n-1"].size(), 1u);
  house.engine.saves = 1;
  house.run();
  EXPECT_EQ(house.posted["m-1"].size(), 1u);
}

TEST(Scheduler, AFailedRequestDropsTheRestOfItsRows) {
  House house;
  house.submit(create("m"));
  house.run();
  house.engine.fail = {"m-1"};
  house.submit(op("m", 1, rows(std::vector<size_t>(100, 16))));
  house.submit(op("m", 2, api::OptimStep{}));
  EXPECT_EQ(house.run(), 2);
  EXPECT_NE(house.failure("m-1"), nullptr);
  EXPECT_EQ(house.failure("m-2"), nullptr);
  EXPECT_EQ(house.scheduler.stats().queued_bytes, 0);
}

TEST(Scheduler, AModelThatWasNotCreatedFailsItsQueue) {
  House house;
  house.engine.fail = {"create-m"};
  house.submit(create("m"));
  house.submit(op("m", 1, rows({3})));
  house.submit(op("m", 2, api::SaveState{}));
  house.run();
  ASSERT_NE(house.failure("m-1"), nullptr);
  EXPECT_THAT(house.failure("m-1")->message, HasSubstr("was not created"));
  EXPECT_EQ(house.failure("m-1")->category, api::FaultCategory::kUser);
  EXPECT_NE(house.failure("m-2"), nullptr);
  EXPECT_EQ(house.submit(op("m", 3, rows({3}))), Verdict::kUnknownModel);
  EXPECT_TRUE(house.scheduler.idle());
}

// server.md: what has not started fails, saves in line are done, samples stop, the model goes.
TEST(Scheduler, EndingASession) {
  House house;
  house.submit(create("m"));
  house.submit(create("other", "t", "other session"));
  house.run();
  house.submit(op("m", 1, rows(std::vector<size_t>(50, 16))));
  house.submit(op("m", 2, api::SaveState{}));
  house.submit(op("m", 3, api::OptimStep{}));
  house.submit(op("m", 5, api::SaveState{}));  // behind a gap: it cannot be in order
  house.submit(op("other", 1, rows({3}), "t", "other session"));
  house.submit(sample("running", 4, 100));
  house.turn();
  house.submit(sample("queued", 4, 100));
  house.scheduler.end_session({"s"}, "the session was finished", 0.0);
  house.run();
  for (const char* request : {"m-1", "m-3", "m-5", "running", "queued"}) {
    ASSERT_NE(house.failure(request), nullptr) << request;
    EXPECT_EQ(house.failure(request)->category, api::FaultCategory::kUser);
    EXPECT_EQ(house.posted[request].size(), 1u);
  }
  EXPECT_EQ(house.failure("m-2"), nullptr);
  EXPECT_EQ(house.failure("other-1"), nullptr);
  EXPECT_THAT(house.engine.log["m"], ElementsAre("create-m", "m-1", "m-2", ""));  // "": unload
  EXPECT_THAT(house.engine.cancelled, UnorderedElementsAre("m-1", "running"));
  EXPECT_EQ(house.submit(op("m", 6, rows({3}))), Verdict::kUnknownModel);
  EXPECT_EQ(house.engine.capacity().running_samples, 0);
  EXPECT_EQ(house.scheduler.stats().models, 1);
  EXPECT_TRUE(house.scheduler.idle());
}

TEST(Scheduler, UnloadingAModel) {
  House house;
  house.submit(create("m"));
  house.run();
  house.submit(op("m", 1, api::OptimStep{}));
  api::Command unload = op("m", 0, api::UnloadModel{});
  EXPECT_EQ(house.submit(unload), Verdict::kAccepted);
  unload.request.text = "second";
  EXPECT_EQ(house.submit(unload), Verdict::kUnknownModel);
  house.run();
  EXPECT_NE(house.failure("m-1"), nullptr);
  EXPECT_EQ(house.failure("m-0"), nullptr);
  EXPECT_EQ(house.posted["m-0"].size(), 1u);
  EXPECT_FALSE(house.scheduler.has_model({"m"}));
  EXPECT_EQ(house.submit(create("m2")), Verdict::kAccepted);
  api::Command unborn = op("m2", 0, api::UnloadModel{});
  EXPECT_EQ(house.submit(unborn), Verdict::kAccepted);
  house.run();
  EXPECT_EQ(house.posted["create-m2"].size(), 1u);
  EXPECT_EQ(house.posted["m2-0"].size(), 1u);
  EXPECT_TRUE(house.scheduler.idle());
}

TEST(Scheduler, CancellingSamples) {
  House house;
  house.engine.max_rows = 1;
  house.submit(sample("running", 4, 100));
  house.submit(sample("queued", 4, 100));
  house.turn();
  EXPECT_TRUE(house.scheduler.cancel({"running"}));
  EXPECT_TRUE(house.scheduler.cancel({"queued"}));
  EXPECT_FALSE(house.scheduler.cancel({"queued"}));
  house.run();
  EXPECT_NE(house.failure("running"), nullptr);
  EXPECT_NE(house.failure("queued"), nullptr);
  EXPECT_THAT(house.engine.cancelled, ElementsAre("running"));
  EXPECT_EQ(house.engine.capacity().running_samples, 0);
}

TEST(Scheduler, ShuttingDownDoesTheSavesAndFailsTheRest) {
  House house;
  house.submit(create("m"));
  house.run();
  house.submit(op("m", 1, rows({3})));
  house.submit(op("m", 2, api::SaveForSampler{}));
  house.submit(sample("s", 4, 100));
  house.scheduler.begin_shutdown(0.0);
  EXPECT_FALSE(house.scheduler.idle());
  EXPECT_EQ(house.submit(sample("late", 4, 100)), Verdict::kStopping);
  house.run();
  EXPECT_EQ(house.failure("m-1")->category, api::FaultCategory::kServer);
  EXPECT_EQ(house.failure("s")->category, api::FaultCategory::kServer);
  EXPECT_EQ(house.failure("m-2"), nullptr);
  EXPECT_TRUE(house.scheduler.idle());
}

TEST(Scheduler, EnginesTakeTurns) {
  Scheduler scheduler({});
  FakeEngine engines[2];
  engines[1].base = api::BaseId{1};
  for (int i = 0; i < 2; ++i) {
    api::Command command = sample("s" + std::to_string(i), 4, 3);
    command.base = api::BaseId{i};
    scheduler.submit(command, 0.0);
  }
  scheduler.release(api::BaseId{1}, {"snapshot"});
  for (int turn = 0; turn < 6; ++turn) {
    const api::Capacity capacities[] = {engines[0].capacity(), engines[1].capacity()};
    const api::Work work = scheduler.next(capacities, 0.0);
    EXPECT_EQ(static_cast<int>(work.base), turn % 2);
    scheduler.complete(engines[static_cast<size_t>(work.base)].run(work), 0.0);
  }
  EXPECT_TRUE(scheduler.idle());
  EXPECT_THAT(engines[1].released, ElementsAre("snapshot"));
  EXPECT_TRUE(engines[0].released.empty());
}

}  // namespace
}  // namespace strata::scheduler
