// SPDX-License-Identifier: Apache-2.0
// WorkRunner's samples: commands become rows of the sampling loop, and rows that end results.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "api/context.h"
#include "api/sampling_options.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/work_runner.h"

namespace strata::engine {
namespace {

// What is asked of the prompt's logprobs.
struct PromptLogprobs {
  std::vector<float> logprobs = {};
  api::TopkTable topk = {};
};

// What was not read has none.
PromptLogprobs to_prompt_logprobs(const api::Sample& sample, std::vector<float> logprobs,
                                  std::vector<int32_t> topk_ids, std::vector<float> topk_logprobs) {
  const auto first = static_cast<size_t>(sample.first_prompt_logprob);
  PromptLogprobs out;
  if (sample.prompt_logprobs) {
    out.logprobs = std::move(logprobs);
    std::fill_n(out.logprobs.begin(), first, api::kNoLogprob);
  }
  if (sample.topk_prompt_logprobs > 0) {
    const auto k = static_cast<size_t>(sample.topk_prompt_logprobs);
    out.topk = {.ids = std::move(topk_ids),
                .logprobs = std::move(topk_logprobs),
                .k = sample.topk_prompt_logprobs};
    std::fill_n(out.topk.ids.begin(), first * k, 0);
    std::fill_n(out.topk.logprobs.begin(), first * k, api::kNoTopk);
  }
  return out;
}

void move_prompt_results(const api::Sample& sample, api::SampleResult& result,
                         api::SampleOutput& output) {
  PromptLogprobs of =
      to_prompt_logprobs(sample, std::move(result.prompt_logprobs), std::move(result.topk_ids),
                         std::move(result.topk_logprobs));
  output.prompt_logprobs = std::move(of.logprobs);
  output.prompt_topk = std::move(of.topk);
  output.prompt_target_logprobs = std::move(result.prompt_target_logprobs);
  output.prompt_draws = {.ids = std::move(result.prompt_draw_ids),
                         .logprobs = std::move(result.prompt_draw_logprobs),
                         .k = sample.prompt_draws};
}

void move_sampled(const api::Sample& sample, api::SampleResult& result,
                  api::SampledSequence& output) {
  output.tokens = std::move(result.tokens);
  output.logprobs = std::move(result.logprobs);
  output.topk = {.ids = std::move(result.sample_topk_ids),
                 .logprobs = std::move(result.sample_topk_logprobs),
                 .k = sample.topk_sample_logprobs};
}

// The row's last one so far. `k`: of its top-k table, 0: none.
api::RowTokens newest_token(const SampleRow& row, int64_t k) {
  const api::SampleResult& sampled = row.result;
  api::RowTokens newest = {.row = row.index,
                           .first = row.num_sampled() - 1,
                           .tokens = {sampled.tokens.back()},
                           .logprobs = {sampled.logprobs.back()}};
  if (k > 0) {
    newest.topk = {
        .ids = {sampled.sample_topk_ids.end() - k, sampled.sample_topk_ids.end()},
        .logprobs = {sampled.sample_topk_logprobs.end() - k, sampled.sample_topk_logprobs.end()},
        .k = k};
  }
  return newest;
}

}  // namespace

std::vector<api::Result> WorkRunner::sample(const api::Work& work) {
  std::vector<api::Result> results;
  timed(sample_seconds_, [&] {
    drop_withdrawn(work);
    admit_rows(work, results);
  });
  if (work.decode) step_samples(results);
  return results;
}

void WorkRunner::drop_withdrawn(const api::Work& work) {
  for (const api::RequestId& request : work.cancel) drop_samples(request);
  for (const api::SnapshotId& snapshot : work.release) snapshots_.release(snapshot);
  if (!work.release.empty()) drop_unreachable_prefixes();
}

void WorkRunner::admit_rows(const api::Work& work, std::vector<api::Result>& results) {
  for (const api::SampleRows& rows : work.samples) start_sample_rows(rows, results);
  for (const api::ResumeRow& row : work.resume) preemption_.try_resume(row);
}

void WorkRunner::start_sample_rows(const api::SampleRows& rows, std::vector<api::Result>& results) {
  const api::RequestId& id = rows.command->request;
  try {
    const auto& sample = std::get<api::Sample>(rows.command->op);
    preemption_.make_space(rows.takes_from, sample, rows.first);
    if (rows.first == 0) open_group(rows.command);
    const std::optional<size_t> group = find_group(id);
    if (!group) return;  // its failure is on the way, behind a pass in whose midst this comes
    for (int64_t i = rows.first; i < rows.last; ++i) add_sample(*group, i);
    if (rows.last == sample.num_samples) loop_.close_group(*group);
  } catch (const std::exception& error) {
    drop_samples(id);
    results.push_back({id, failure_of(error)});
  }
}

void WorkRunner::check_sample(const api::Sample& sample) const {
  const int64_t prompt = std::ssize(sample.prompt);
  const auto fail = [](ErrorCode code, const std::string& what) {
    throw Error(code, "sample: " + what);
  };
  const int64_t context = engine_.config().context();
  if (const auto fault = api::find_context_fault(prompt, sample.max_tokens, context)) {
    fail(ErrorCode::kInvalidArgument,
         *fault + api::context_note(context, engine_.config().max_position_embeddings));
  }
  if (sample.num_samples < 1)
    fail(ErrorCode::kInvalidArgument, fmt::format("num_samples: got {}", sample.num_samples));
  if (!sample.stop_texts.empty() && tokenizer_ == nullptr)
    fail(ErrorCode::kUnsupported, "stop texts need a tokenizer.json, and the model has none");
  const KvPool& pool = engine_.kv_pool();
  const int64_t pages = pool.need().of_largest(sample);
  if (pool.max_pages() > 0 && pages > pool.max_pages()) {
    fail(ErrorCode::kResourceExhausted,
         fmt::format(
             "{} prompt and {} new tokens need {} cache pages of {} positions, and there are "
             "{}; ask for fewer max_tokens, or start the server with more --memory",
             prompt, sample.max_tokens, pages, pool.page_size(), pool.max_pages()));
  }
}

void WorkRunner::open_group(const std::shared_ptr<const api::Command>& command) {
  const auto& sample = std::get<api::Sample>(command->op);
  check_sample(sample);
  const auto answer =
      std::make_shared<SampleAnswer>(SampleAnswer{.command = command, .left = sample.num_samples});
  answer->output.sequences.resize(static_cast<size_t>(sample.num_samples));
  StagedAdapter adapter;
  if (!sample.snapshot.empty()) adapter = snapshots_.lookup_adapter(sample.snapshot);
  const bool waits = !sample.snapshot.empty() && adapter.empty();
  if (waits) snapshots_.request_read(sample.snapshot, sample.snapshot_dir, command->tenant);
  const size_t group =
      loop_.open_group(std::shared_ptr<const api::SampleRequest>(command, &sample), adapter,
                       /*owner=*/std::hash<std::string>()(command->tenant.text), answer);
  if (waits) loop_.await_weights(group);
}

std::vector<size_t> WorkRunner::groups_awaiting(const api::SnapshotId& weights) const {
  std::vector<size_t> waiting;
  for (const auto& [number, group] : loop_.groups()) {
    if (!group.has_weights && group.answer->sample().snapshot == weights) waiting.push_back(number);
  }
  return waiting;
}

// All who waited for these weights begin, or fail as their file does.
void WorkRunner::finish_snapshot_read(FileJob job, std::vector<api::Result>& results) {
  const api::SnapshotId id{job.name};
  const std::vector<size_t> waiting = groups_awaiting(id);
  try {
    const StagedAdapter adapter = snapshots_.finish_read(std::move(job));
    for (const size_t group : waiting) loop_.give_weights(group, adapter);
  } catch (const std::exception& error) {
    for (const size_t group : waiting) {
      const api::RequestId request = loop_.group(group).answer->command->request;
      drop_samples(request);
      results.push_back({request, failure_of(error)});
    }
  }
  drop_unreachable_prefixes();  // of weights that made way for these
}

void WorkRunner::drop_unreachable_prefixes() {
  for (const auto& prefixes : prefixes_) prefixes->drop_unreachable();
}

void WorkRunner::add_sample(size_t group, int64_t index) {
  const api::Sample& sample = loop_.group(group).answer->sample();
  const size_t row = loop_.add_row(group, api::sample_seed(sample.seed, index));
  std::unique_ptr<StopText> stop;
  if (!sample.stop_texts.empty()) stop = std::make_unique<StopText>(*tokenizer_, sample.stop_texts);
  loop_.set_sample(row, index, std::move(stop));
  if (!sample.is_constrained()) return;
  if (stages_.has_other_processes()) loop_.share_masks(row);
  stages_.run_in_all_processes([&] {
    if (sample.grammar != nullptr) loop_.set_matcher(row, sample.grammar->start(sample.stop));
  });
}

std::optional<size_t> WorkRunner::find_group(const api::RequestId& request) const {
  for (const auto& [id, group] : loop_.groups()) {
    if (group.answer->command->request == request) return id;
  }
  return std::nullopt;
}

void WorkRunner::drop_samples(const api::RequestId& request) {
  const std::optional<size_t> group = find_group(request);
  if (!group) return;
  std::vector<size_t> rows;
  for (const auto& [id, row] : loop_.rows()) {
    if (row.group == *group) rows.push_back(id);
  }
  if (!loop_.group(*group).closed) loop_.close_group(*group);
  for (const size_t id : rows) {
    loop_.finish(id);
    try {
      loop_.take_result(id);
    } catch (const Error&) {  // nobody reads it
    }
  }
}

void WorkRunner::fail_all_samples(const std::string& reason, std::vector<api::Result>& results) {
  std::vector<api::RequestId> running;
  for (const auto& [id, group] : loop_.groups()) running.push_back(group.answer->command->request);
  for (const api::RequestId& id : running) {
    drop_samples(id);
    results.push_back(
        {id, api::Failure{api::FaultCategory::kServer, "sampling failed: " + reason}});
  }
}

void WorkRunner::clear_prefixes() {
  for (const auto& prefixes : prefixes_) prefixes->clear();
}

// The row's place in its request is taken; the last one gives the request's result.
void WorkRunner::end_sample(size_t id, bool stopped, std::vector<api::Result>& results) {
  const SampleRow& row = loop_.row(id);
  const int64_t index = row.index;
  const std::shared_ptr<SampleAnswer> answer = loop_.group_of(row).answer;
  answer->output.cached_tokens = loop_.group_of(row).num_found.value_or(0);
  const api::RequestId& request = answer->command->request;
  try {
    api::SampleResult result = loop_.take_result(id);
    if (index == 0) move_prompt_results(answer->sample(), result, answer->output);
    api::SampledSequence& out = answer->output.sequences[static_cast<size_t>(index)];
    move_sampled(answer->sample(), result, out);
    out.stopped = stopped || result.stopped;
  } catch (const Error& error) {
    drop_samples(request);
    results.push_back({request, api::Failure{api::FaultCategory::kUser, error.what()}});
    return;
  }
  if (--answer->left == 0) results.push_back({request, std::move(answer->output)});
}

// The newest token of a row, where its request asked for it; else that there is one.
void WorkRunner::emit_token(size_t id, bool ended, bool stopped) {
  const SampleRow& row = loop_.row(id);
  const SampleGroup& group = loop_.group_of(row);
  SampleAnswer& answer = *group.answer;
  if (!answer.sample().streams_tokens) {
    events_.emplace_back(answer.command->request, api::Sampled{.row = row.index, .count = 1});
    return;
  }
  api::RowTokens told = newest_token(row, answer.sample().topk_sample_logprobs);
  told.ended = ended;
  told.stopped = stopped || row.result.stopped;
  if (!std::exchange(answer.emitted_prompt, true)) {  // no row has been taken yet, which takes them
    PromptLogprobs of = to_prompt_logprobs(answer.sample(), group.prompt.prompt_logprobs,
                                           group.prompt.topk_ids, group.prompt.topk_logprobs);
    told.prompt_logprobs = std::move(of.logprobs);
    told.prompt_topk = std::move(of.topk);
  }
  events_.emplace_back(answer.command->request, std::move(told));
}

void WorkRunner::handle_sampled(const SampledToken& token, std::vector<api::Result>& results) {
  StopText* stop = loop_.row(token.id).stop.get();
  const bool stopped = stop != nullptr && token.token >= 0 && stop->push(token.token, token.last);
  const bool ended = stopped || token.last;
  if (token.token >= 0) emit_token(token.id, ended, stopped);
  if (stopped && !token.last) loop_.finish(token.id);
  if (ended) end_sample(token.id, stopped, results);
}

void WorkRunner::step_samples(std::vector<api::Result>& results) {
  if (loop_.done()) return;
  const double begin = now_seconds();
  loop_.set_step_tokens(budget_.tokens());
  std::span<const SampledToken> sampled;
  try {
    sampled = loop_.step();
  } catch (const std::exception& error) {
    fail_all_samples(error.what(), results);
    // What stages have left of the rows may differ.
    if (stages_.plan().num_ranks_in_all() > 1) clear_prefixes();
    sample_seconds_ += now_seconds() - begin;
    return;
  }
  budget_.adapt(loop_.last_tokens(), now_seconds() - begin);
  sampled_tokens_ += std::ssize(sampled);
  for (const SampledToken& token : sampled) {
    // Else its request failed in this step.
    if (loop_.rows().contains(token.id)) handle_sampled(token, results);
  }
  sample_seconds_ += now_seconds() - begin;
}

}  // namespace strata::engine
