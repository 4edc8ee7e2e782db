// SPDX-License-Identifier: Apache-2.0
// A scheduler and a WorkRunner on a tiny model, as the server joins them, and commands for them.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/work_runner.h"
#include "scheduler/scheduler.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {

struct Server {
  explicit Server(const TinyEngine& setup = {}, const AdapterLimits& limits = {},
                  const RunnerOptions& options = {})
      : engine(tiny_engine(setup)),
        passes(*engine),
        tokenizer(text::Tokenizer::load(std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3")),
        book(limits),
        runner(passes, &tokenizer, book, options) {}
  std::unique_ptr<Engine> engine;
  Runner passes;
  text::Tokenizer tokenizer;
  AdapterBook book;
  WorkRunner runner;
  scheduler::Scheduler scheduler{{}};
  std::map<std::string, std::vector<api::Outcome>> posted;
  std::vector<api::Event> told;  // beside these
  bool writes = true;            // saves at once, as the server's worker does later
  int64_t saved_bytes = 0;

  void submit(api::Command command) {
    ASSERT_EQ(scheduler.submit(std::move(command), 0.0).admission, api::Admission::kAccepted);
  }
  bool reads = true;  // files that are asked for at once, as other threads do later

  void finish_files() {
    while (reads && runner.files().num_waiting() > 0) runner.files().work();
    post(runner.finish_files());
  }
  void post(std::vector<api::Result> results) {
    for (api::Result& result : scheduler.complete(std::move(results), 0.0)) {
      auto* saved = std::get_if<api::Saved>(&result.outcome);
      if (saved != nullptr && saved->what != api::SavedAs::kNothing && writes)
        saved_bytes = runner.copies().write(result.request).value();
      posted[result.request.text].push_back(std::move(result.outcome));
    }
  }
  bool turn() {
    finish_files();
    const api::Capacity capacity = runner.capacity();
    const api::Work work = scheduler.next({&capacity, 1}, 0.0);
    post(runner.run(work));
    for (api::Event& event : runner.take_events()) told.push_back(std::move(event));
    return !work.empty() || (reads && runner.files().num_waiting() > 0);
  }
  void run() {
    while (turn()) {
    }
    EXPECT_TRUE(scheduler.idle());
    EXPECT_EQ(runner.capacity().running_samples, 0);
    EXPECT_EQ(engine->kv_pool().num_free(), engine->kv_pool().num_pages());
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
