// SPDX-License-Identifier: Apache-2.0
// The scheduler against a fake engine: order, exactly once, barriers, sharing, ends.
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/scheduler/house.h"

namespace strata::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

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
      RC_ASSERT(house.submit(events[i]) == api::Admission::kAccepted);
      if (*rc::gen::inRange(0, 3) == 0) house.turn();
      if (events[i].seq_id > 0 && *rc::gen::inRange(0, 4) == 0) {
        api::Command again = events[i];
        again.request.text += "-again";
        RC_ASSERT(house.scheduler.submit(again, 0.0) == api::Admission::kGivenUp);
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
  EXPECT_EQ(house.submit(op("m", 2, rows({2}))), api::Admission::kGivenUp);
  EXPECT_EQ(house.submit(op("m", 5, rows({2}))), api::Admission::kAccepted);
  house.run();
  EXPECT_THAT(house.engine.log["m"], ElementsAre("create-m", "m-1", "m-5"));
}

TEST(Scheduler, ARefusedSubmissionConsumesItsNumber) {
  House house;
  house.submit(create("m"));
  house.submit(op("m", 2, api::OptimStep{}));
  house.run();
  EXPECT_EQ(house.posted["m-2"].size(), 0u);
  house.scheduler.mark_refused({"m"}, 1, 0.0);
  house.run();
  EXPECT_EQ(house.posted["m-2"].size(), 1u);
}

// Whoever has forgotten that it came.
TEST(Scheduler, ANumberIsTakenOnceAndOfAModelThatIsThere) {
  House house;
  EXPECT_EQ(house.submit(op("m", 1, api::OptimStep{})), api::Admission::kUnknownModel);
  EXPECT_EQ(house.submit(create("m")), api::Admission::kAccepted);
  house.run();
  api::Command again = create("m");
  again.request.text = "other";
  EXPECT_EQ(house.submit(again), api::Admission::kGivenUp);
  house.submit(op("m", 1, api::OptimStep{}));
  again = op("m", 1, api::OptimStep{});
  again.request.text = "again";
  EXPECT_EQ(house.submit(again), api::Admission::kGivenUp);
  house.run();
  EXPECT_EQ(house.submit(again), api::Admission::kGivenUp);
  house.run();
  EXPECT_THAT(house.engine.log["m"], ElementsAre("create-m", "m-1"));
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

// A tenant is charged for what is read for it, not for pages that are known.
TEST(Scheduler, KnownPagesAreNotCounted) {
  for (const bool is_known : {false, true}) {
    House house;
    house.engine.max_rows = 1;
    const api::Command first = sample("x", 17, 4, 1, "x");
    uint64_t hash = api::KnownPages::hash_of(first.tenant, {});
    const auto& prompt = std::get<api::Sample>(first.op).prompt;
    for (size_t page = 0; is_known && page < 4; ++page) {
      hash = api::KnownPages::hash_of(hash, std::span(prompt).subspan(4 * page, 4));
      house.engine.known.add(hash);
    }
    for (int i = 0; i < 12; ++i) {
      house.submit(sample("x" + std::to_string(i), 17, 4, 1, "x"));
      house.submit(sample("y" + std::to_string(i), 17, 4, 1, "y"));
    }
    while (house.posted["y2"].empty()) house.turn();
    // Six pages each; of x four are known.
    EXPECT_EQ(house.posted["x3"].size(), is_known ? 1u : 0u);
    EXPECT_EQ(house.posted["x5"].size(), is_known ? 1u : 0u);
  }
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
  EXPECT_EQ(house.submit(op("m", 3, rows({3}))), api::Admission::kUnknownModel);
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
  EXPECT_EQ(house.submit(op("m", 6, rows({3}))), api::Admission::kUnknownModel);
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
  EXPECT_EQ(house.submit(unload), api::Admission::kAccepted);
  unload.request.text = "second";
  EXPECT_EQ(house.submit(unload), api::Admission::kUnknownModel);
  house.run();
  EXPECT_NE(house.failure("m-1"), nullptr);
  EXPECT_EQ(house.failure("m-0"), nullptr);
  EXPECT_EQ(house.posted["m-0"].size(), 1u);
  EXPECT_EQ(house.scheduler.stats().models, 0);
  EXPECT_EQ(house.submit(create("m2")), api::Admission::kAccepted);
  api::Command unborn = op("m2", 0, api::UnloadModel{});
  EXPECT_EQ(house.submit(unborn), api::Admission::kAccepted);
  house.run();
  EXPECT_EQ(house.posted["create-m2"].size(), 1u);
  EXPECT_EQ(house.posted["m2-0"].size(), 1u);
  EXPECT_TRUE(house.scheduler.idle());
}

TEST(Scheduler, SamplesEndWithTheirSession) {
  House house;
  house.engine.max_rows = 1;
  house.submit(sample("running", 4, 100));
  house.submit(sample("queued", 4, 100));
  house.turn();
  house.submit(sample("other", 4, 100, 1, "t", "s2"));
  house.scheduler.end_session({"s"}, "the session was finished", 0.0);
  house.run();
  EXPECT_EQ(house.failure("other"), nullptr);
  EXPECT_NE(house.failure("running"), nullptr);
  EXPECT_NE(house.failure("queued"), nullptr);
  EXPECT_THAT(house.engine.cancelled, ElementsAre("running"));
  EXPECT_EQ(house.engine.capacity().running_samples, 0);
}

// One that waits, one that runs in part, and one that runs: each leaves alone, and the others take
// its space.
TEST(Scheduler, ACancelledSampleLeavesAtOnce) {
  House house;
  house.engine.max_rows = 3;
  house.engine.pages = 1000;
  ASSERT_EQ(house.submit(sample("running", 2, 100, 2)), api::Admission::kAccepted);
  ASSERT_EQ(house.submit(sample("in part", 2, 100, 2)), api::Admission::kAccepted);
  ASSERT_EQ(house.submit(sample("waiting", 2, 100)), api::Admission::kAccepted);
  ASSERT_EQ(house.submit(sample("other", 2, 3)), api::Admission::kAccepted);
  house.turn();
  EXPECT_EQ(house.engine.capacity().running_samples, 3);
  for (const char* request : {"running", "in part", "waiting"}) {
    EXPECT_TRUE(house.scheduler.cancel({request}, "nobody waits")) << request;
    EXPECT_FALSE(house.scheduler.cancel({request}, "again")) << request;
  }
  EXPECT_FALSE(house.scheduler.cancel({"never was"}, "nobody waits"));
  house.run();
  EXPECT_THAT(house.engine.cancelled, UnorderedElementsAre("running", "in part"));
  for (const char* request : {"running", "in part", "waiting"}) {
    ASSERT_EQ(house.posted[request].size(), 1u);
    EXPECT_EQ(house.failure(request)->message, "nobody waits");
    EXPECT_EQ(house.failure(request)->category, api::FaultCategory::kUser);
  }
  ASSERT_EQ(house.posted["other"].size(), 1u);
  EXPECT_TRUE(std::holds_alternative<api::SampleOutput>(house.posted["other"][0]));
  EXPECT_FALSE(house.scheduler.cancel({"other"}, "has ended"));
  EXPECT_TRUE(house.scheduler.idle());
  EXPECT_EQ(house.scheduler.stats().queued_samples, 0);
  EXPECT_EQ(house.scheduler.stats().queued_bytes, 0);
}

// What trains is not cancelled: its number would be missing.
TEST(Scheduler, TrainingIsNotCancelled) {
  House house;
  house.submit(create("m"));
  house.submit(op("m", 1, rows({4})));
  EXPECT_FALSE(house.scheduler.cancel({"m-1"}, "nobody waits"));
  house.run();
  ASSERT_EQ(house.posted["m-1"].size(), 1u);
  EXPECT_EQ(house.failure("m-1"), nullptr);
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
  EXPECT_EQ(house.submit(sample("late", 4, 100)), api::Admission::kStopping);
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
