// SPDX-License-Identifier: Apache-2.0
// A scheduler and a WorkRunner on a tiny model, as the server joins them, and commands for them.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/comm.h"
#include "engine/turns.h"
#include "engine/work_runner.h"
#include "schedule/generate.h"
#include "scheduler/scheduler.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {

// Reruns of these tests ask for stages.
inline int test_stages() {
  const char* asked = std::getenv("STRATA_TEST_STAGES");
  return asked == nullptr ? 1 : std::atoi(asked);
}

inline std::string tiny_model_dir(const TinyEngine& setup) {
  return std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + setup.model + "/model";
}

inline PipelinePlan tiny_plan(const TinyEngine& setup, int num_stages) {
  const int64_t num_layers = model::load_config(tiny_model_dir(setup), false).config.num_layers();
  const std::vector<double> costs(static_cast<size_t>(num_layers), 1.0);
  const bool is_divided = num_stages > 1;
  PipelinePlan plan =
      make_pipeline_plan(schedule::generate({.kind = schedule::Kind::k1f1b,
                                             .num_ranks = num_stages,
                                             .num_microbatches = is_divided ? 2 * num_stages : 1}),
                         /*forwarding_delay=*/1, balance_layers(costs, 0.0, 0.5, num_stages));
  plan.any_length = is_divided;
  return plan;
}

inline std::unique_ptr<Engine> tiny_stage(const TinyEngine& setup, const model::LayerRange& part,
                                          const model::TensorShare& tensor = {},
                                          const model::ExpertShare& expert = {}) {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), test_threads(setup.threads));
  auto model = model::load_model(
      *backend, tiny_model_dir(setup),
      {.compute_dtype = setup.dtype, .part = part, .tensor = tensor, .expert = expert});
  return std::make_unique<Engine>(std::move(backend), std::move(model), setup.options);
}

// A model that makes drafts is whole.
inline std::unique_ptr<Stages> tiny_stages(const TinyEngine& setup, int num_stages) {
  std::vector<std::unique_ptr<Engine>> engines;
  if (num_stages == 1 || setup.options.draft_tokens > 0) {
    engines.push_back(tiny_engine(setup));
    const int64_t num_layers = engines[0]->config().num_layers();
    return std::make_unique<Stages>(make_whole_plan(num_layers), std::move(engines));
  }
  PipelinePlan plan = tiny_plan(setup, num_stages);
  for (const model::LayerRange& part : plan.layers) engines.push_back(tiny_stage(setup, part));
  return std::make_unique<Stages>(std::move(plan), std::move(engines));
}

// How ranks have parts of the same stage.
struct StageShares {
  int tensor = 1, expert = 1;
};

// The stage of one of several ranks.
inline std::unique_ptr<Stages> tiny_stages(const TinyEngine& setup, Comm& comm,
                                           const StageShares& shares) {
  const int alike = shares.tensor * shares.expert;
  PipelinePlan plan = tiny_plan(setup, comm.size() / alike);
  plan.tensor = shares.tensor;
  plan.expert = shares.expert;
  auto stage = tiny_stage(setup, plan.layers[static_cast<size_t>(comm.rank() / alike)],
                          plan.tensor_share(comm.rank()), plan.expert_share(comm.rank()));
  return std::make_unique<Stages>(comm, std::move(plan), std::move(stage));
}

struct Server {
  explicit Server(const TinyEngine& setup = {}, const AdapterLimits& limits = {},
                  const RunnerOptions& options = {}, int num_stages = test_stages())
      : Server(Loaded{}, tiny_stages(setup, num_stages), limits, options) {}
  // One of several processes, of which the first leads.
  Server(const TinyEngine& setup, Comm& comm, const AdapterLimits& limits = {},
         const RunnerOptions& options = {}, const StageShares& shares = {})
      : Server(Loaded{}, tiny_stages(setup, comm, shares), limits, options) {
    if (comm.rank() == 0) turns.emplace(comm);
  }
  struct Loaded {};  // stages that are there
  Server(Loaded, std::unique_ptr<Stages> of, const AdapterLimits& limits,
         const RunnerOptions& options)
      : stages(std::move(of)),
        engine(&stages->engine()),
        tokenizer(text::Tokenizer::load(std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3")),
        book(limits),
        runner(*stages, &tokenizer, book, options) {}
  std::unique_ptr<Stages> stages;
  Engine* engine;  // of the first
  text::Tokenizer tokenizer;
  AdapterBook book;
  WorkRunner runner;
  std::optional<TurnLeader> turns;  // none: no other process is asked
  scheduler::Scheduler scheduler{{}};
  std::map<std::string, std::vector<api::Outcome>> posted;
  std::vector<api::Event> told;  // beside these
  bool writes = true;            // saves at once, as the server's worker does later
  int64_t saved_bytes = 0;
  bool breaks_in = false;  // of several processes: samples on training passes
  int64_t num_breaks = 0;  // that had some

  void submit(api::Command command) {
    ASSERT_EQ(scheduler.submit(std::move(command), 0.0), api::Admission::kAccepted);
  }
  bool reads = true;  // files that are asked for at once, as other threads do later

  void finish_files() {
    while (reads && runner.files().num_waiting() > 0) runner.files().run_one();
    post(turns ? turns->finish_files(runner, {}) : runner.finish_files());
  }
  void post(std::vector<api::Result> results) {
    for (api::Result& result : scheduler.complete(std::move(results), 0.0)) {
      auto* saved = std::get_if<api::Saved>(&result.outcome);
      if (saved != nullptr && saved->what != api::SavedAs::kNothing && writes)
        saved_bytes = runner.copies().flush_copy(result.request).value();
      posted[result.request.text].push_back(std::move(result.outcome));
    }
  }
  bool turn() {
    finish_files();
    const api::Capacity capacity = runner.capacity();
    const api::Work work = scheduler.next({&capacity, 1}, 0.0);
    post(turns && !work.empty() ? run_in_all_processes(work) : runner.run(work));
    for (api::Event& event : runner.take_events()) told.push_back(std::move(event));
    return !work.empty() || (reads && runner.files().num_waiting() > 0);
  }
  // At many places of a pass, where there are samples.
  std::vector<api::Result> run_in_all_processes(const api::Work& work) {
    int64_t num_asked = 0;
    const auto is_due = [&] { return ++num_asked % 5 == 0 && runner.num_running() > 0; };
    const auto take = [&] {
      turns->run_break([&] {
        finish_files();
        const api::Work samples = scheduler.next_samples(runner.capacity());
        if (samples.empty()) return;
        ++num_breaks;
        post(turns->sample(runner, samples));
      });
    };
    const Interruption breaks{.is_due = is_due, .run = take};
    return turns->run(runner, work, breaks_in ? &breaks : nullptr);
  }
  void run() {
    while (turn()) {
    }
    EXPECT_TRUE(scheduler.idle());
    EXPECT_EQ(runner.capacity().running_samples, 0);
    for (size_t i = 0; i < stages->size(); ++i) {
      const KvPool& pool = stages->engine(i).kv_pool();
      EXPECT_EQ(pool.num_free(), pool.num_pages()) << i;
    }
  }
  // Submits and runs it alone.
  const api::Outcome& ask(api::Command command) {
    const std::string request = command.request.text;
    submit(std::move(command));
    run();
    EXPECT_EQ(posted[request].size(), 1u) << request;
    return posted[request].at(0);
  }
  std::string message(const api::Command& command) {
    const api::Outcome& outcome = ask(command);
    const auto* failure = std::get_if<api::Failure>(&outcome);
    return failure == nullptr ? "" : failure->message;
  }
};

inline api::Command command(const std::string& model, int64_t seq, api::Operation op,
                            const std::string& request = "") {
  return {.request = {request.empty() ? model + "-" + std::to_string(seq) : request},
          .tenant = {"tenant of " + model},
          .session = {"session of " + model},
          .model = {model},
          .seq_id = seq,
          .op = std::move(op)};
}

inline api::Command create(const std::string& model, api::LoraConfig lora) {
  return command(model, 0, api::CreateModel{.lora = lora}, "create " + model);
}

inline api::ForwardBackward data(const Engine& engine, std::vector<int64_t> lengths, uint32_t seed,
                                 bool forward_only = false) {
  api::ForwardBackward out;
  out.forward_only = forward_only;
  for (const int64_t length : lengths) out.data.push_back(tiny_datum(engine, length, ++seed));
  return out;
}

inline api::Command sample(const Engine& engine, const std::string& request, int64_t prompt,
                           uint64_t seed, int64_t num_samples = 1) {
  api::Sample out;
  out.prompt = tiny_tokens(prompt, engine.config().vocab_size, static_cast<uint32_t>(seed));
  out.max_tokens = 7;
  out.num_samples = num_samples;
  out.temperature = 0.8f;
  out.top_k = 40;
  out.seed = seed;
  return {.request = {request}, .tenant = {"tenant"}, .session = {"session"}, .op = std::move(out)};
}

}  // namespace strata::engine
