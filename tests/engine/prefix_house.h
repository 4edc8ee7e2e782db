// SPDX-License-Identifier: Apache-2.0
// What tests of the prefix cache share: commands, answers as bytes, and a model of the cache for an
// engine.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/prefix_model.h"
#include "tests/engine/runner_house.h"

namespace strata::engine {

struct Drawn {
  uint32_t state = 1;
  int64_t operator()(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return static_cast<int64_t>(state >> 8) % below;
  }
};

inline api::Command ask(const std::string& request, const std::string& tenant, Tokens prompt,
                        int64_t max_tokens, uint64_t seed, int64_t num_samples = 1) {
  api::Sample out;
  out.prompt = std::move(prompt);
  out.max_tokens = max_tokens;
  out.num_samples = num_samples;
  out.temperature = 0.8f;
  out.top_k = 40;
  out.seed = seed;
  return {.request = {request}, .tenant = {tenant}, .session = {"session"}, .op = std::move(out)};
}

inline const api::SampleOutput& output_of(Server& server, const std::string& request) {
  static const api::SampleOutput kNone;
  EXPECT_EQ(server.posted[request].size(), 1u) << request;
  if (server.posted[request].size() != 1) return kNone;
  const auto* output = std::get_if<api::SampleOutput>(&server.posted[request][0]);
  EXPECT_NE(output, nullptr) << request << " "
                             << std::get_if<api::Failure>(&server.posted[request][0])->message;
  return output == nullptr ? kNone : *output;
}

// All that a client sees but for what was found.
inline std::string bytes_of(const api::Outcome& outcome) {
  if (const auto* failure = std::get_if<api::Failure>(&outcome)) return failure->message;
  std::string text;
  const auto add = [&text](const auto& values) {
    text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    text += '|';
  };
  const auto& output = std::get<api::SampleOutput>(outcome);
  for (const api::SampledSequence& sequence : output.sequences) {
    add(sequence.tokens);
    add(sequence.logprobs);
    add(sequence.topk.ids);
    add(sequence.topk.logprobs);
    text += sequence.stopped ? 's' : 'l';
  }
  add(output.prompt_logprobs);
  add(output.prompt_topk.ids);
  add(output.prompt_topk.logprobs);
  add(output.prompt_target_logprobs);
  add(output.prompt_draws.ids);
  add(output.prompt_draws.logprobs);
  return text;
}

inline void expect_nothing_held(Server& server) {
  if (server.runner.prefixes() != nullptr) server.runner.prefixes()->clear();
  EXPECT_EQ(server.engine->kv_pool().num_free(), server.engine->kv_pool().num_pages());
  EXPECT_EQ(server.engine->state_pool().num_free(), server.engine->state_pool().num_slabs());
}

inline void run_all(Server& server) {
  while (server.turn()) {
  }
  EXPECT_TRUE(server.scheduler.idle());
}

struct Family {
  const char* model;
  bool has_window = false;  // all of its layers: pages before it go
};
// Pages alone, windows, latent, states of delta nets, and of compressed attention.
constexpr Family kFamilies[] = {
    {"qwen3"}, {"mistral_window", true}, {"deepseek_mla"}, {"qwen3_5"}, {"deepseek_v4"}};

constexpr int64_t kPage = 8;

inline CacheModel model_of(const Engine& engine) {
  const model::CacheLayout& layout = engine.cache_layout();
  int64_t window = 0;
  while (layout.first_needed(window) == 0 && window < 4096) ++window;
  return {.page_size = layout.page_size(),
          .window = window < 4096 ? window : 0,
          .has_states = layout.state_bytes() > 0,
          .pages = {.most = engine.options().max_pages},
          .states = {.most = engine.options().max_states}};
}

}  // namespace strata::engine
