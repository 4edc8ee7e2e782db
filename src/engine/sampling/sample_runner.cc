#include "engine/sampling/sample_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

namespace strata::engine {
namespace {

constexpr uint64_t kSeedStream = 0x73657276652d31;  // keeps these seeds apart from other draws

}  // namespace

uint64_t sample_seed(uint64_t seed, int64_t i) {
  const auto words = Counter{.seed = seed, .stream = kSeedStream}.words(static_cast<uint64_t>(i));
  return uint64_t{words[0]} << 32 | words[1];
}

int64_t SampleRunner::free_states() const {
  const int64_t limit = engine_.state_pool().max_slabs();
  if (limit == 0 || engine_.cache_layout().state_bytes() == 0) return INT64_MAX;
  return std::max<int64_t>(0, limit - reserved_states_);
}

void SampleRunner::open(const std::shared_ptr<const api::Command>& command) {
  const auto& sample = std::get<api::Sample>(command->op);
  const auto prompt = static_cast<int64_t>(sample.prompt.size());
  const auto fail = [](ErrorCode code, const std::string& what) {
    throw Error(code, "sample: " + what);
  };
  const int64_t context = engine_.config().max_position_embeddings;
  if (prompt + sample.max_tokens > context) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format(
             "Prompt length plus max_tokens exceeds the model's context window: {} + {} > {}",
             prompt, sample.max_tokens, context));
  }
  if (sample.num_samples < 1)
    fail(ErrorCode::kInvalidArgument, fmt::format("num_samples: got {}", sample.num_samples));
  if (!sample.stop_texts.empty() && tokenizer_ == nullptr)
    fail(ErrorCode::kUnsupported, "stop texts need a tokenizer.json, and the model has none");
  const KvPool& pool = engine_.kv_pool();
  // A further row begins at the prompt's last token, on a page of its own, beside the prompt's.
  const int64_t further = sample.num_samples > 1 ? 1 : 0;
  const int64_t pages = pool.pages_for(prompt + sample.max_tokens) + further;
  if (pool.max_pages() > 0 && pages > pool.max_pages()) {
    fail(ErrorCode::kResourceExhausted,
         fmt::format(
             "{} prompt and {} new tokens need {} cache pages of {} positions, and there are "
             "{}; ask for fewer max_tokens, or start the server with more --memory",
             prompt, sample.max_tokens, pages, pool.page_size(), pool.max_pages()));
  }
  Request request;
  request.command = command;
  request.left = sample.num_samples;
  request.prompt_pages = pool.pages_for(prompt);
  request.prompt_states = further;
  std::shared_ptr<model::LoraAdapter> adapter;
  if (!sample.snapshot.empty()) adapter = snapshots_.get(sample.snapshot, sample.snapshot_dir);
  request.group = loop_.open(sample, std::move(adapter), owner(command->tenant));
  request.output.sequences.resize(static_cast<size_t>(sample.num_samples));
  hold_prompt(requests_[command->request] = std::move(request), true);
}

void SampleRunner::add_row(Request& request, int64_t index) {
  const api::Sample& sample = request.sample();
  const size_t id = loop_.add_row(request.group, sample_seed(sample.seed, index));
  Row& row = rows_[id];
  row.request = request.command->request;
  row.index = index;
  row.shares_prompt = index > 0;
  reserve(row, row_pages(row, sample.max_tokens));
  ++reserved_states_;
  if (!sample.stop_texts.empty())
    row.stop = std::make_unique<StopText>(*tokenizer_, sample.stop_texts);
  request.rows.push_back(id);
}

// What the next row of a request needs, as scheduler/cost.h has it.
SampleRunner::Need SampleRunner::need_to_join(const api::Sample& sample, int64_t index) const {
  const KvPool& pool = engine_.kv_pool();
  const auto prompt = static_cast<int64_t>(sample.prompt.size());
  const int64_t shared = index == 0 ? 0 : (prompt - 1) / pool.page_size();
  return {.pages = pool.pages_for(prompt + sample.max_tokens) - shared,
          .states = index == 0 && sample.num_samples > 1 ? 2 : 1};
}

void SampleRunner::join(const api::SampleRows& rows, std::vector<api::Result>& results) {
  const api::RequestId& id = rows.command->request;
  try {
    const auto& sample = std::get<api::Sample>(rows.command->op);
    make_room(rows.takes_from, need_to_join(sample, rows.first));
    if (rows.first == 0) open(rows.command);
    Request& request = requests_.at(id);
    for (int64_t i = rows.first; i < rows.last; ++i) add_row(request, i);
    if (rows.last == request.sample().num_samples) {
      loop_.close(request.group);
      request.closed = true;
    }
  } catch (const Error& error) {
    drop(id);
    results.push_back({id, api::Failure{api::category_of(error.code), error.what()}});
  } catch (const std::exception& error) {
    drop(id);
    results.push_back({id, api::Failure{api::FaultCategory::kServer, error.what()}});
  }
}

void SampleRunner::cancel(const api::RequestId& request) { drop(request); }

void SampleRunner::drop(const api::RequestId& id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (!request.closed) loop_.close(request.group);
  for (const size_t row : request.rows) {
    loop_.finish(row);
    try {
      loop_.take(row);
    } catch (const Error&) {  // nobody reads it
    }
    forget_row(row);
  }
  hold_prompt(request, false);
  requests_.erase(found);
}

void SampleRunner::drop_all(const std::string& reason, std::vector<api::Result>& results) {
  std::vector<api::RequestId> running;
  for (const auto& [id, request] : requests_) running.push_back(id);
  for (const api::RequestId& id : running) {
    drop(id);
    results.push_back(
        {id, api::Failure{api::FaultCategory::kServer, "sampling failed: " + reason}});
  }
}

void SampleRunner::take_prompt(Request& request, api::SampleResult& result) {
  const api::Sample& sample = request.sample();
  const auto first = static_cast<size_t>(sample.first_prompt_logprob);
  api::SampleOutput& output = request.output;
  if (sample.prompt_logprobs) {
    output.prompt_logprobs = std::move(result.prompt_logprobs);
    std::fill_n(output.prompt_logprobs.begin(), first, api::kNoLogprob);
  }
  if (sample.topk_prompt_logprobs > 0) {
    const auto k = static_cast<size_t>(sample.topk_prompt_logprobs);
    output.prompt_topk = {.ids = std::move(result.topk_ids),
                          .logprobs = std::move(result.topk_logprobs),
                          .k = sample.topk_prompt_logprobs};
    std::fill_n(output.prompt_topk.ids.begin(), first * k, 0);
    std::fill_n(output.prompt_topk.logprobs.begin(), first * k, api::kNoTopk);
  }
  output.prompt_target_logprobs = std::move(result.prompt_target_logprobs);
  output.prompt_draws = {.ids = std::move(result.prompt_draw_ids),
                         .logprobs = std::move(result.prompt_draw_logprobs),
                         .k = sample.prompt_draws};
}

// The row's place in its request is taken; the last one gives the request's result.
void SampleRunner::end_row(size_t row, bool stopped, std::vector<api::Result>& results) {
  const api::RequestId id = rows_.at(row).request;
  const int64_t index = rows_.at(row).index;
  forget_row(row);
  Request& request = requests_.at(id);
  std::erase(request.rows, row);
  try {
    api::SampleResult result = loop_.take(row);
    if (index == 0) take_prompt(request, result);
    api::SampledSequence& out = request.output.sequences[static_cast<size_t>(index)];
    out.tokens = std::move(result.tokens);
    out.logprobs = std::move(result.logprobs);
    out.topk = {.ids = std::move(result.sample_topk_ids),
                .logprobs = std::move(result.sample_topk_logprobs),
                .k = request.sample().topk_sample_logprobs};
    out.stopped = stopped || result.stopped;
  } catch (const Error& error) {
    drop(id);
    results.push_back({id, api::Failure{api::FaultCategory::kUser, error.what()}});
    return;
  }
  if (--request.left > 0) return let_go_of_prompt(request);
  results.push_back({id, std::move(request.output)});
  hold_prompt(request, false);
  requests_.erase(id);
}

void SampleRunner::step(std::vector<api::Result>& results) {
  if (loop_.done()) return;
  std::span<const SampledToken> sampled;
  const double begin = now_seconds();
  loop_.set_step_tokens(budget_.tokens());
  try {
    sampled = loop_.step();
  } catch (const std::exception& error) {
    return drop_all(error.what(), results);
  }
  budget_.note(loop_.last_tokens(), now_seconds() - begin);
  sampled_tokens_ += std::ssize(sampled);
  for (const SampledToken& token : sampled) {
    const auto found = rows_.find(token.id);
    if (found == rows_.end()) continue;  // its request failed in this step
    StopText* stop = found->second.stop.get();
    const bool stopped = stop != nullptr && token.token >= 0 && stop->push(token.token, token.last);
    if (stopped && !token.last) loop_.finish(token.id);
    if (stopped || token.last) end_row(token.id, stopped, results);
  }
}

}  // namespace strata::engine
