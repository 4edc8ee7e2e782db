// SPDX-License-Identifier: Apache-2.0
// strata train within a memory: plans, recompute, and weights and activations in files.
#include <fmt/format.h>
#include <sys/mman.h>

#include <cmath>
#include <set>

#include "engine/pipeline/stage_runner.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/apps/plan_run.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

TEST_F(TrainTest, ThreadsRecomputeAndPassesDoNotChangeABit) {
  TrainOptions one = options("one");
  one.steps = 5;
  TrainOptions other = run_and_move(one, "other");
  other.threads = 1;
  other.recompute = "full";
  other.micro_tokens = 1;
  other.save_every = "1";
  ASSERT_EQ(run_train(other), 0);
  expect_same_files("one", "other", {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
}

TEST_F(TrainTest, TheLeastMemoryRecomputesAndChangesNoBit) {
  TrainOptions one = options("one");
  one.steps = 3;
  TrainOptions least = run_and_move(one, "least");
  const auto set = [&](int64_t kib) {
    least.memory = std::to_string(kib) + "KiB";
    engine::EngineOptions chosen;
    with_job(least, [&](TrainJob& job) { chosen = job.engine().options(); });
    return chosen;
  };
  EXPECT_TRUE(set(1 << 20).recompute.keeps_all());
  EXPECT_EQ(set(1 << 20).pass_tokens, least.micro_tokens);
  int64_t too_little = 1, enough = 1 << 20;
  while (enough - too_little > 1) {
    const int64_t middle = (enough + too_little) / 2;
    try {
      set(middle);
      enough = middle;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--memory " + least.memory), std::string::npos);
      too_little = middle;
    }
  }
  EXPECT_FALSE(set(enough).recompute.keeps_all());
  ASSERT_EQ(run_train(least), 0);
  expect_same_files("one", "least", {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  least.out = root_ + "/both";
  least.recompute = "full";
  EXPECT_NE(fault(least).find("--memory and --recompute: give one"), std::string::npos);
}

// The plan is of the longest pass that the data's batches come to, held out ones among them, not of
// one that is as long as it may be.
TEST_F(TrainTest, ThePlanIsOfTheLongestPass) {
  const auto booked = [](engine::Engine& engine) {
    Backend& backend = engine.backend();
    int64_t bytes = backend.scratch().booked();
    for (int i = 0; i < backend.num_workers(); ++i)
      bytes += as_cpu(backend).worker(i).scratch().booked();
    return bytes;
  };
  for (const bool long_held_out : {false, true}) {
    TrainOptions o = options("out");
    o.micro_tokens = 400;
    o.batch_tokens = long_held_out ? 20 : 400;
    o.eval_fraction = 0.5;
    with_job(o, [&](TrainJob& job, const engine::RunPlan& plan) {
      while (job.steps_done() < job.num_steps()) job.step();
      const int64_t trained = booked(job.engine());
      job.evaluate();
      const int64_t planned = plan.memory.bytes_of(engine::MemoryUse::kPass);
      const int64_t taken = booked(job.engine());
      EXPECT_EQ(taken > trained, long_held_out);
      EXPECT_LE(taken, planned);
      const int64_t tokens = plan.pass.pass_tokens;
      EXPECT_LE(tokens, o.batch_tokens);
      if (long_held_out) return;
      EXPECT_EQ(tokens, job.train_data().num_tokens);  // one pass holds them
    });
  }
}

TEST_F(TrainTest, PlansSayWhatAllParametersTakeByOptimizer) {
  std::set<int64_t> sizes;
  for (const char* const optimizer : {"adamw", "muon"}) {
    TrainOptions o = options(optimizer);
    o.method = "full";
    o.optimizer = optimizer;
    PlanOptions asked;
    asked.model = o.model;
    asked.dtype = o.dtype;
    asked.tokens = "1x16";
    asked.json = true;
    asked.optimizer = optimizer;
    if (o.optimizer == "muon") {
      EXPECT_NE(apps::fault(asked).find("--optimizer muon: steps matrices of all parameters"),
                std::string::npos);
    }
    asked.method = "full";
    const int64_t said = plan(asked).at("bytes").at("base training").as_int64();
    with_job(o, [&](TrainJob& job, const engine::RunPlan&) {
      job.step();
      EXPECT_EQ(said, job.engine().base_trainer().num_bytes()) << optimizer;
    });
    sizes.insert(said);
  }
  EXPECT_EQ(sizes.size(), 2u);
}

// Muon has no second moments of matrices, and works with more memory in a step than AdamW.
TEST_F(TrainTest, StagesOfAllParametersTakeWhatIsPlanned) {
  for (const char* const optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions o = options(optimizer);
    o.model = deep_model();
    o.method = "full";
    o.optimizer = optimizer;
    o.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 2};
    with_job(o, [&](TrainJob& job, const engine::RunPlan& plan) {
      job.step();
      for (const auto& runner : job.pipeline().stages()) {
        const engine::StagePlan& planned = plan.stages[static_cast<size_t>(runner->stage())];
        engine::Engine& engine = runner->engine();
        EXPECT_EQ(planned.training_bytes, engine.base_trainer().num_bytes());
        EXPECT_LE(engine.backend().scratch().high_water(), planned.pass_bytes + planned.step_bytes);
      }
    });
  }
}

// The weights are twice the memory of the whole run.
TEST_F(TrainTest, WeightsLargerThanTheMemoryLieInAFileAndChangeNoBit) {
  TrainOptions one = wide_options("one");
  one.steps = 3;
  TrainOptions less = run_and_move(one, "less");
  with_job(one, [&](TrainJob& job) {
    EXPECT_FALSE(job.engine().model().weights->in_files());
    less.memory = std::to_string(job.engine().model().weights->num_bytes() / 2);
  });
  with_job(less, [&](TrainJob& job, const engine::RunPlan& plan) {
    EXPECT_TRUE(job.engine().model().weights->in_files());
    EXPECT_LE(plan.memory.total(), std::stoll(less.memory));
  });
  ASSERT_EQ(run_train(less), 0);
  expect_same_files("one", "less", {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  less.out = root_ + "/nowhere";
  less.offload = root_ + "/no/such/folder";
  EXPECT_NE(fault(less).find("--offload " + less.offload), std::string::npos);
  less.memory.clear();
  less.offload = testing::TempDir();
  EXPECT_NE(fault(less).find("--offload: the folder of what --memory does not hold"),
            std::string::npos);
}

// What steps all parameters is most of what a run takes.
TEST_F(TrainTest, MastersAndMomentsInAFileChangeNoBit) {
  for (const char* const optimizer : {"adamw", "muon"}) {
    for (const int stages : {1, 2}) {
      const std::string name = fmt::format("{}-{}", optimizer, stages);
      SCOPED_TRACE(name);
      TrainOptions one = options(name.c_str());
      one.model = deep_model();
      one.method = "full";
      one.optimizer = optimizer;
      one.steps = 3;
      if (stages > 1) one.stages = {.stages = stages, .schedule = "1f1b", .microbatches = 2};
      TrainOptions least = one;
      least.recompute = "full";
      TrainOptions less = run_and_move(one, name + "-less");
      with_job(least, [&](TrainJob& job, const engine::RunPlan& plan) {
        int64_t state = 0;
        for (const auto& runner : job.pipeline().stages())
          state += runner->engine().base_trainer().state_bytes();
        if (job.is_first_rank()) less.memory = std::to_string(plan.memory.total() - state / 2);
      });
      with_job(less, [&](TrainJob& job, const engine::RunPlan& plan) {
        EXPECT_TRUE(plan.state_in_files);
        EXPECT_LE(plan.memory.total(), std::stoll(less.memory));
        for (const auto& runner : job.pipeline().stages()) {
          const train::BaseTrainer& trainer = runner->engine().base_trainer();
          EXPECT_TRUE(trainer.in_files());
          const engine::StagePlan& planned = plan.stages[static_cast<size_t>(runner->stage())];
          EXPECT_EQ(planned.state_file_bytes, trainer.state_bytes());
          EXPECT_EQ(planned.training_bytes, trainer.num_bytes() - trainer.state_bytes());
        }
      });
      ASSERT_EQ(run_train(less), 0);
      expect_same_files(name.c_str(), (name + "-less").c_str(),
                        {"model.safetensors", "trainer/optimizer.safetensors"});
    }
  }
}

// Of files without names that this process has open: takes what the system keeps of them in memory.
void throw_out_files() {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (!target.ends_with(" (deleted)")) continue;
    const int file = std::stoi(entry.path().filename());
    ::fdatasync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  }
}

// What the system holds in memory of the matrices, in pages.
int64_t resident_pages(const model::ModelWeights& weights) {
  int64_t pages = 0;
  for (const model::Parameter& parameter : weights.table()) {
    if (!parameter.is_matrix()) continue;
    const auto begin = reinterpret_cast<uintptr_t>(parameter.panel.data) / 4096 * 4096;
    const auto bytes = static_cast<size_t>(parameter.panel.num_bytes());
    std::vector<unsigned char> is_there(bytes / 4096 + 2);
    ::mincore(reinterpret_cast<void*>(begin), bytes, is_there.data());
    for (const unsigned char page : is_there) pages += page & 1;
  }
  return pages;
}

// Twenty steps, before each of which the system has thrown out what it kept of the file. Run with
// the slow tests.
TEST_F(TrainTest, DISABLED_TwentyStepsFromAFileThatIsThrownOutChangeNoBit) {
  TrainOptions one = wide_options("one");
  one.steps = 20;
  TrainOptions less = one;
  with_job(one, [&](TrainJob& job) {
    while (job.steps_done() < job.num_steps()) job.step();
    job.export_to(root_ + "/one");
    less.memory = std::to_string(job.engine().model().weights->num_bytes() / 2);
  });
  with_job(less, [&](TrainJob& job, const engine::RunPlan& plan) {
    const model::ModelWeights& weights = *job.engine().model().weights;
    ASSERT_TRUE(weights.in_files());
    EXPECT_LE(plan.memory.total(), std::stoll(less.memory));
    for (int step = 0; step < 20; ++step) {
      const int64_t before = resident_pages(weights);
      throw_out_files();
      EXPECT_LT(resident_pages(weights), before / 2);
      job.step();
    }
    job.export_to(root_ + "/less");
  });
  // Without a run there are no metrics to compare.
  EXPECT_TRUE(content(root_ + "/one/adapter_model.safetensors") ==
              content(root_ + "/less/adapter_model.safetensors"));
}

}  // namespace
}  // namespace strata::apps
