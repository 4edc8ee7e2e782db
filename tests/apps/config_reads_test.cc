// SPDX-License-Identifier: Apache-2.0
// A command reads its model's config.json once, however many stages, plans and texts want it.
#include <sys/inotify.h>

#include "apps/eval.h"
#include "apps/generate/generate.h"
#include "apps/inspect.h"
#include "apps/plan/plan.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

// Opens of a file from here on.
class Opens {
 public:
  explicit Opens(const std::string& path) : fd_(::inotify_init1(IN_NONBLOCK)) {
    // With the closes between them the kernel takes no two opens for one.
    EXPECT_GE(::inotify_add_watch(fd_, path.c_str(), IN_OPEN | IN_CLOSE), 0);
  }
  Opens(const Opens&) = delete;
  Opens& operator=(const Opens&) = delete;
  ~Opens() { ::close(fd_); }

  [[nodiscard]] int count() const {
    int opens = 0;
    inotify_event event = {};  // of a file, which has no name
    while (::read(fd_, &event, sizeof(event)) == sizeof(event))
      opens += (event.mask & IN_OPEN) != 0 ? 1 : 0;
    return opens;
  }

 private:
  int fd_;
};

class ConfigReads : public TrainTest {
 protected:
  template <typename Body>
  static int opens_of(const std::string& model, Body body) {
    const Opens opens(model + "/config.json");
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(body(), 0);
    static_cast<void>(::testing::internal::GetCapturedStdout());
    return opens.count();
  }
  int of_train(TrainOptions o) {
    o.out += std::to_string(num_runs_++);
    o.steps = 1;
    return opens_of(o.model, [&] { return run_train(o); });
  }

 private:
  int num_runs_ = 0;
};

TEST_F(ConfigReads, OnceInTraining) {
  TrainOptions o = options("out");
  o.model = deep_model();
  EXPECT_EQ(of_train(o), 1);
  o.memory = "3GiB";
  EXPECT_EQ(of_train(o), 1);
  o.stages.stages = 2;
  EXPECT_EQ(of_train(o), 1);
  o.method = "full";  // whose model has a copy of the small files
  EXPECT_EQ(of_train(o), 1);
  o.stages = {};
  o.method = "lora";
  o.sweep = {"1e-3", "1e-4"};
  o.lr.reset();
  EXPECT_EQ(of_train(o), 1);
}

TEST_F(ConfigReads, OnceInEveryOtherCommand) {
  EXPECT_EQ(opens_of(model(), [&] { return run_inspect({.model = model()}); }), 1);
  EvalOptions eval;
  eval.model = model();
  eval.data = {root_ + "/data.jsonl"};
  EXPECT_EQ(opens_of(model(), [&] { return run_eval(eval); }), 1);
  GenerateOptions generate;
  generate.prompt = "What is";
  generate.has_prompt = true;
  generate.generation.model = model();
  generate.generation.max_tokens = 2;
  EXPECT_EQ(opens_of(model(), [&] { return run_generate(generate); }), 1);
  PlanOptions plan;
  plan.model = deep_model();
  plan.tokens = "4x32";
  plan.memory = "3GiB";
  EXPECT_EQ(opens_of(plan.model, [&] { return run_plan(plan, find_plan_mode("train")); }), 1);
  plan.stages.stages = 2;
  EXPECT_EQ(opens_of(plan.model, [&] { return run_plan(plan, find_plan_mode("train")); }), 1);
}

}  // namespace
}  // namespace strata::apps
