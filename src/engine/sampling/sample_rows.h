// SPDX-License-Identifier: Apache-2.0
// The rows of a running batch, and the groups they come in: rows of one prompt. One table, of which
// each part has one writer: RowBook who runs and what is held of the cache, StepPlanner what is
// read, SamplePass what is sampled and drafted, Preemption when a row may be set aside, WorkRunner
// what becomes of a command. Engine thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/command.h"
#include "api/result.h"
#include "engine/sampling/stop_text.h"
#include "model/adapter/lora.h"
#include "ops/choose_tokens.h"

namespace strata::engine {

// What a row of logits is to give, and gives.
struct SampleChoice : ops::TokenChoice {
  size_t id = 0;
  size_t num_drafts = 0;             // read before it: counts where these are the tokens before
  std::vector<int32_t> drafts = {};  // the tokens that penalties count behind the row's own
};

// Of a command: what its rows have given so far.
struct SampleAnswer {
  std::shared_ptr<const api::Command> command;
  int64_t left = 0;          // samples without an end
  bool told_prompt = false;  // its logprobs, where tokens are told
  api::SampleOutput output = {};
  [[nodiscard]] const api::Sample& sample() const { return std::get<api::Sample>(command->op); }
};

// What a row was given.
struct ChosenToken {
  int32_t token = 0;
  float logprob = 0.0f;
  std::vector<int32_t> topk_ids = {};
  std::vector<float> topk_logprobs = {};
  std::string error = {};  // instead of them
};

struct SampleGroup {
  std::shared_ptr<const api::SampleRequest> request;  // without a seed of its own
  std::vector<ops::LogitChange> bias = {};            // the request's
  ops::Penalties penalties = {};                      // likewise
  std::vector<int32_t> penalised = {};                // the prompt's tokens, each once
  std::shared_ptr<SampleAnswer> answer = nullptr;     // of a command; else null
  std::shared_ptr<model::LoraAdapter> keep = nullptr;
  model::LoraAdapter* adapter = nullptr;
  bool has_weights = true;  // false: they are being read, and no row can
  uint64_t owner = 0;
  bool has_looked = false;        // for what of the prompt is known
  int64_t num_found = 0;          // tokens that were, the first time
  std::vector<void*> pages = {};  // of the prompt, owned together with the rows
  void* state = nullptr;          // after the shared part of the prompt, where there is one
  api::SampleResult prompt = {};  // values of the prompt, until the first row is taken
  bool has_values = false;        // nothing is to be added to them
  int64_t num_added = 0;          // rows, ever
  int64_t num_rows = 0;           // not taken
  int64_t num_resident = 0;       // not finished, and with pages or about to have them
  bool begun = false;             // some row reads the prompt, or has
  bool ready = false;             // the prompt is in the cache
  bool closed = false;

  [[nodiscard]] bool wants_prompt() const {
    return request->wants_prompt_logprobs() || !request->prompt_targets.empty() ||
           request->prompt_draws > 0;
  }
  [[nodiscard]] int64_t prompt_size() const { return std::ssize(request->prompt); }
  // The prompt's pages are kept: for rows that are to come, or that share them.
  [[nodiscard]] bool holds_prompt() const { return !closed || num_resident > 0; }
};

struct SampleRow {
  size_t group = 0;
  uint64_t seed = 0;
  api::SampleResult result = {};
  std::vector<ops::TokenCount> counts = {};  // of its tokens, where penalties are of them
  std::vector<void*> pages = {};
  void* state = nullptr;
  int64_t position = 0;                 // tokens already in the cache, and in the pass
  int64_t num_read = 0;                 // of these, what is there
  int64_t border = 0;                   // of its sample, behind which the state was kept; 0: none
  bool has_looked = false;              // for a prefix that is known
  std::vector<int32_t> drafts = {};     // of the tokens behind the last (or `ahead`)
  std::vector<ChosenToken> ahead = {};  // sampled, but not handed out yet
  int64_t last_step = 0;                // that it took part in
  bool first = false;                   // of its group: the prompt's values go with it
  bool leads = false;                   // reads the prompt for the group
  bool joined = false;                  // not a leader: has its share of the prompt
  bool resident = false;                // holds pages, or is about to
  bool aside = false;                   // takes no part in steps
  int64_t aside_order = 0;              // who was set aside before has a lower one
  bool finished = false;
  std::string error = {};
  // Of a command.
  int64_t index = 0;                         // of the sample
  std::unique_ptr<StopText> stop = nullptr;  // or null
  // Of the space it takes.
  bool shares_prompt = false;  // begins behind the prompt, on a page of its own
  int64_t runs_until = 0;      // not set aside before it has sampled so many tokens

  [[nodiscard]] int64_t num_sampled() const { return std::ssize(result.tokens); }
};

}  // namespace strata::engine
