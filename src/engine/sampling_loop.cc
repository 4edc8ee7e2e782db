#include "engine/sampling_loop.h"

#include <algorithm>

#include "engine/memory_plan.h"
#include "ops/elementwise.h"
#include "ops/log_softmax.h"
#include "sample/sampler.h"

namespace strata::engine {

SamplingLoop::~SamplingLoop() {
  for (Row& row : rows_) release(row);
}

void SamplingLoop::release(Row& row) {
  for (void* page : row.pages) engine_.kv_pool().give_back(page);
  row.pages.clear();
}

size_t SamplingLoop::add(const api::SampleRequest& request) {
  engine_.check(request, rows_.size());
  Row row;
  row.request = request;
  row.adapter = engine_.adapter_or_base(request.slot);
  const size_t prompt = request.prompt.size();
  if (row.wants_prompt()) row.result.prompt_logprobs.assign(prompt, 0.0f);
  const auto k = static_cast<size_t>(request.topk_prompt_logprobs);
  row.result.topk_ids.assign(prompt * k, 0);
  row.result.topk_logprobs.assign(prompt * k, 0.0f);
  rows_.push_back(std::move(row));
  active_.push_back(rows_.size() - 1);
  return rows_.size() - 1;
}

void SamplingLoop::finish(size_t id) {
  Row& row = rows_[id];
  row.finished = true;
  release(row);
  std::erase(active_, id);
}

api::SampleResult SamplingLoop::take(size_t id) {
  CHECK(rows_[id].finished, id);
  return std::move(rows_[id].result);
}

// Every decoding row gives one token; prompts share what is left of the token budget, in order of
// id.
void SamplingLoop::plan_pass() {
  builder_.clear();
  slices_.clear();
  int64_t room = engine_.options().prefill_tokens;
  // Neighbours of one adapter share a run, and a run is one product.
  decoding_.clear();
  for (const size_t id : active_) {
    if (!rows_[id].in_prompt()) decoding_.push_back(id);
  }
  std::sort(decoding_.begin(), decoding_.end(), [this](size_t a, size_t b) {
    const auto slot = [this](size_t id) { return rows_[id].request.slot; };
    return slot(a) != slot(b) ? slot(a) < slot(b) : a < b;
  });
  for (const size_t id : decoding_) add_slice(id, 1);
  room -= static_cast<int64_t>(decoding_.size());
  for (const size_t id : active_) {
    if (!rows_[id].in_prompt() || room <= 0) continue;
    const int64_t left = static_cast<int64_t>(rows_[id].request.prompt.size()) - rows_[id].position;
    const int64_t count = std::min(left, room);
    add_slice(id, count);
    room -= count;
  }
  CHECK(!slices_.empty());  // the budget is at least one token
}

void SamplingLoop::add_slice(size_t id, int64_t count) {
  Row& row = rows_[id];
  KvPool& pool = engine_.kv_pool();
  const int64_t end = row.position + count;
  while (static_cast<int64_t>(row.pages.size()) < pool.pages_for(end))
    row.pages.push_back(pool.take());
  const auto prompt = static_cast<int64_t>(row.request.prompt.size());
  const int64_t begin_row = builder_.num_tokens();
  const model::KvPages kv = {.pages = row.pages, .page_size = pool.page_size()};
  if (row.in_prompt()) {
    builder_.add(std::span(row.request.prompt)
                     .subspan(static_cast<size_t>(row.position), static_cast<size_t>(count)),
                 row.position, row.adapter, kv);
  } else {
    builder_.add(std::span(&row.result.tokens.back(), 1), row.position, row.adapter, kv);
  }
  slices_.push_back(
      {.id = id, .begin = begin_row, .end = begin_row + count, .samples = end >= prompt});
  row.position = end;
}

std::span<const SampledToken> SamplingLoop::step() {
  sampled_.clear();
  if (active_.empty()) return sampled_;
  plan_pass();
  Backend& backend = engine_.backend();
  int64_t rank = 0;
  for (const Slice& slice : slices_) {
    const model::LoraAdapter* adapter = rows_[slice.id].adapter;
    if (adapter != nullptr) rank = std::max(rank, adapter->max_rank());
  }
  backend.scratch().reserve(
      plan_pass_bytes(engine_, {.pass_tokens = builder_.num_tokens(), .rank = rank}));
  const Scratch::Mark mark(backend.scratch());
  model::Pass pass = builder_.build(backend, *engine_.model().weights, engine_.rope());
  const TensorView hidden =
      backend.scratch().take(pass.dtype(), {pass.num_tokens(), engine_.config().hidden_size});
  model::decoder_forward(pass, nullptr, {}, hidden);
  read_logits(pass, hidden);
  std::sort(sampled_.begin(), sampled_.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return sampled_;
}

// The head runs on the rows that someone reads: the last row of a slice that samples, and prompt
// rows whose logprobs are wanted.
void SamplingLoop::read_logits(model::Pass& pass, TensorView hidden) {
  selected_.assign(static_cast<size_t>(pass.num_tokens()), 0);
  for (const Slice& slice : slices_) {
    if (slice.samples) selected_[static_cast<size_t>(slice.end - 1)] = 1;
    if (rows_[slice.id].wants_prompt()) {
      const auto prompt = static_cast<int64_t>(rows_[slice.id].request.prompt.size());
      for (int64_t row = slice.begin; row < slice.end; ++row) {
        const int64_t position = rows_[slice.id].position - (slice.end - row);
        if (position + 1 < prompt) selected_[static_cast<size_t>(row)] = 1;
      }
    }
  }
  Backend& backend = pass.backend;
  const int64_t vocab = engine_.config().vocab_size;
  size_t slice = 0;
  chunks_.start(pass, selected_);
  for (auto rows = chunks_.next(); !rows.empty(); rows = chunks_.next()) {
    const Scratch::Mark mark(backend.scratch());
    const auto count = static_cast<int64_t>(rows.size());
    const TensorView x = backend.scratch().take(pass.dtype(), {count, hidden.cols()});
    const TensorView logits = backend.scratch().take(DType::kF32, {count, vocab});
    const TensorView lse = backend.scratch().take(DType::kF32, {count, 2});
    ops::gather(backend, hidden, rows, x);
    model::head_forward(pass, chunks_.groups(), x, {}, logits);
    ops::logsumexp(backend, logits, lse);
    for (size_t i = 0; i < rows.size(); ++i) {
      while (rows[i] >= slices_[slice].end) ++slice;
      use_logits(slices_[slice].id, slices_[slice], rows[i],
                 logits.f32() + static_cast<int64_t>(i) * vocab, lse.f32() + 2 * i);
    }
  }
}

void SamplingLoop::use_logits(size_t id, const Slice& slice, int64_t row_idx, const float* logits,
                              const float* lse) {
  Row& row = rows_[id];
  const int64_t position = row.position - (slice.end - row_idx);
  if (row.wants_prompt() && position + 1 < static_cast<int64_t>(row.request.prompt.size())) {
    record_prompt(row, position + 1, logits, lse);
  }
  if (slice.samples && row_idx == slice.end - 1) sample_token(id, row, logits, lse);
}

void SamplingLoop::record_prompt(Row& row, int64_t position, const float* logits,
                                 const float* lse) {
  const auto at = static_cast<size_t>(position);
  row.result.prompt_logprobs[at] = ops::logprob(logits[row.request.prompt[at]], lse);
  const int64_t k = row.request.topk_prompt_logprobs;
  if (k == 0) return;
  const auto vocab = static_cast<size_t>(engine_.config().vocab_size);
  const auto offset = at * static_cast<size_t>(k);
  const auto ids = std::span(row.result.topk_ids).subspan(offset, static_cast<size_t>(k));
  sample::topk_logprobs({logits, vocab}, lse, ids,
                        std::span(row.result.topk_logprobs).subspan(offset, ids.size()));
}

void SamplingLoop::sample_token(size_t id, Row& row, const float* logits, const float* lse) {
  const api::SampleRequest& request = row.request;
  const sample::SamplingParams params = {.temperature = request.temperature,
                                         .top_k = request.top_k,
                                         .top_p = request.top_p,
                                         .seed = request.seed};
  const auto vocab = static_cast<size_t>(engine_.config().vocab_size);
  const int32_t token = sample::choose_token({logits, vocab}, params, row.result.tokens.size());
  const float logprob = ops::logprob(logits[token], lse);
  row.result.tokens.push_back(token);
  row.result.logprobs.push_back(logprob);
  row.result.stopped =
      std::find(request.stop.begin(), request.stop.end(), token) != request.stop.end();
  const bool last =
      row.result.stopped || static_cast<int64_t>(row.result.tokens.size()) >= request.max_tokens;
  sampled_.push_back({.id = id, .token = token, .logprob = logprob, .last = last});
  if (last) finish(id);
}

std::vector<api::SampleResult> Engine::sample(const std::vector<api::SampleRequest>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) check(requests[i], i);
  SamplingLoop loop(*this);
  for (const api::SampleRequest& request : requests) loop.add(request);
  while (!loop.done()) loop.step();
  std::vector<api::SampleResult> results;
  for (size_t i = 0; i < requests.size(); ++i) results.push_back(loop.take(i));
  return results;
}

}  // namespace strata::engine
