// SPDX-License-Identifier: Apache-2.0
// One step of a SamplingLoop: what each row reads, the pass, and what comes of its logits.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/sampling/sampling_loop.h"
#include "ops/choose_tokens.h"
#include "ops/elementwise.h"
#include "ops/log_softmax.h"

namespace strata::engine {
namespace {

// The targets of the position in PromptTargets::ids.
std::pair<size_t, size_t> targets_at(const api::SampleRequest& request, int64_t position) {
  const api::PromptTargets& targets = request.prompt_targets;
  if (targets.empty()) return {0, 0};
  const auto row = static_cast<size_t>(position - 1);
  return {static_cast<size_t>(targets.first[row]), static_cast<size_t>(targets.first[row + 1])};
}

// Whether anything is asked of the distribution of the prompt's token at `position`.
bool reads_position(const api::SampleRequest& request, int64_t position) {
  if (request.prompt_draws > 0) return true;
  if (request.wants_prompt_logprobs() && position >= request.first_prompt_logprob) return true;
  const auto [first, last] = targets_at(request, position);
  return first < last;
}

}  // namespace

// What is asked of a row's logits.
ops::TokenChoice SamplingLoop::choice_of(const SampleRow& row) {
  const api::SampleRequest& request = *group_of(row).request;
  return {.params = {.temperature = request.temperature,
                     .top_k = request.top_k,
                     .top_p = request.top_p,
                     .seed = row.seed},
          .scaled_logprobs = request.scaled_logprobs};
}

// Positions of the prompt that a further row need not read: its last token must be, for its logits.
int64_t SamplingLoop::shared_positions(const SampleGroup& group) const {
  return engine_.cache_layout().last_shared(group.prompt_size() - 1);
}

// The row begins where it no longer shares the prompt: it has the full pages before, a copy of the
// page that it will write to, and a copy of the state there.
void SamplingLoop::join_prompt(SampleRow& row) {
  SampleGroup& group = group_of(row);
  KvPool& pool = engine_.kv_pool();
  row.position = shared_positions(group);
  if (group.state != nullptr) row.state = engine_.state_pool().take_copy(group.state);
  const int64_t shared = row.position / pool.page_size();
  for (int64_t p = 0; p < shared; ++p) {
    void* page = group.pages[static_cast<size_t>(p)];
    if (page != nullptr) pool.share(page);
    row.pages.push_back(page);
  }
  if (row.position % pool.page_size() != 0)
    row.pages.push_back(pool.take_copy(group.pages[static_cast<size_t>(shared)]));
  row.joined = true;
}

// Tokens that the row reads next: of its prompt, or of its own after that. A leader stops where
// further rows will begin, since its state there is copied.
int64_t SamplingLoop::next_piece(SampleRow& row, int64_t room) {
  SampleGroup& group = group_of(row);
  const int64_t prompt = group.prompt_size();
  if (row.position >= prompt) return std::min(unread(row), room);
  int64_t end = prompt;
  const int64_t border = shared_positions(group);
  const bool has_state = engine_.cache_layout().state_bytes() > 0;
  if (has_state && row.leads && shares(group) && border > 0) {
    if (row.position < border) {
      end = border;
    } else if (row.position == border && group.state == nullptr) {
      group.state = engine_.state_pool().take_copy(row.state);
    }
  }
  return std::min(end - row.position, room);
}

// Which rows have one token to go through the model, the last they know, and which have more to
// read; and what both come to for each owner.
void SamplingLoop::sort_rows() {
  decoding_.clear();
  reading_.clear();
  claims_.clear();
  for (const size_t id : active_) {
    SampleRow& row = rows_.at(id);
    if (!row.ahead.empty()) continue;
    const SampleGroup& group = groups_.at(row.group);
    if (!row.leads && !row.joined) {
      if (!group.ready) continue;
      join_prompt(row);
    }
    auto claim = std::find_if(claims_.begin(), claims_.end(),
                              [&](const StepClaim& c) { return c.owner == group.owner; });
    if (claim == claims_.end()) claim = claims_.insert(claim, {.owner = group.owner});
    const bool reads_prompt = row.leads && row.position < group.prompt_size();
    if (unread(row) == 1 && !reads_prompt) {
      decoding_.push_back(id);
      ++claim->decoding;
    } else {
      reading_.push_back(id);
      claim->prompt += unread(row);
    }
  }
}

// What each owner is granted goes to those of its rows that have waited longest for a token, and to
// its prompts in order of id.
void SamplingLoop::plan_pass() {
  builder_.clear();
  slices_.clear();
  ++num_steps_;
  sort_rows();
  int64_t room = engine_.options().prefill_tokens;
  if (step_tokens_ > 0) room = std::min(room, step_tokens_);
  share_step(claims_, room, static_cast<uint64_t>(num_steps_));
  const auto claim_of = [this](size_t id) -> StepClaim& {
    const uint64_t owner = group_of(rows_.at(id)).owner;
    return *std::find_if(claims_.begin(), claims_.end(),
                         [&](const StepClaim& c) { return c.owner == owner; });
  };
  std::stable_sort(decoding_.begin(), decoding_.end(), [this](size_t a, size_t b) {
    return rows_.at(a).last_step < rows_.at(b).last_step;
  });
  std::erase_if(decoding_, [&](size_t id) { return claim_of(id).granted_decoding-- <= 0; });
  // Neighbours of one adapter share a run, and a run is one product.
  std::sort(decoding_.begin(), decoding_.end(), [this](size_t a, size_t b) {
    const auto adapter = [this](size_t id) { return group_of(rows_.at(id)).adapter; };
    const std::less<> before;
    if (adapter(a) != adapter(b)) return before(adapter(a), adapter(b));
    return a < b;
  });
  // Drafts are further tokens of the step, as many of each row as it has room for.
  const int64_t room_for_drafts = room / std::max<int64_t>(1, std::ssize(decoding_)) - 1;
  for (const size_t id : decoding_) {
    const int64_t drafts = std::min(room_for_drafts, drafts_to_read(rows_.at(id)));
    add_slice(id, 1 + std::max<int64_t>(0, drafts));
  }
  for (const size_t id : reading_) {
    int64_t& left = claim_of(id).granted_prompt;
    if (left <= 0) continue;
    const int64_t count = next_piece(rows_.at(id), left);
    add_slice(id, count);
    left -= count;
  }
}

// Not for the last token that is asked for: nothing is sampled behind it.
int64_t SamplingLoop::most_drafts(const SampleRow& row) {
  const int64_t left = group_of(row).request->max_tokens - row.num_sampled() - 1;
  return std::min(engine_.options().draft_tokens, left - std::ssize(row.ahead));
}

int64_t SamplingLoop::drafts_to_read(const SampleRow& row) {
  return std::min(std::ssize(row.drafts), most_drafts(row));
}

// A slice of more tokens than the row has reads its drafts behind them.
void SamplingLoop::add_slice(size_t id, int64_t count) {
  SampleRow& row = rows_.at(id);
  SampleGroup& group = group_of(row);
  KvPool& pool = engine_.kv_pool();
  const int64_t end = row.position + count;
  // Pages before every layer's window will not be read again.
  const int64_t needed = engine_.cache_layout().first_needed(row.position) / pool.page_size();
  for (int64_t p = 0; p < needed; ++p) {
    void*& page = row.pages[static_cast<size_t>(p)];
    if (page != nullptr) pool.give_back(std::exchange(page, nullptr));
  }
  const bool samples = count >= unread(row);
  const int64_t reach = samples ? reach_of_drafts(row, end) : end;
  while (static_cast<int64_t>(row.pages.size()) < pool.pages_for(reach))
    row.pages.push_back(pool.take());
  builder_.reach(reach);
  const int64_t begin_row = builder_.num_tokens();
  if (row.state == nullptr && engine_.cache_layout().state_bytes() > 0)
    row.state = engine_.state_pool().take();
  const model::SequenceCache kept = {.pages = row.pages, .state = row.state};
  const int64_t num_drafts = std::max<int64_t>(0, count - unread(row));
  const bool ends_prompt = end == group.prompt_size() && row.leads;
  row.last_step = num_steps_;
  if (row.position < group.prompt_size()) {
    builder_.add(std::span(group.request->prompt)
                     .subspan(static_cast<size_t>(row.position), static_cast<size_t>(count)),
                 row.position, group.adapter, kept);
    if (ends_prompt) {  // after this pass others may start from here
      group.ready = true;
      if (shares(group)) {
        group.pages.assign(row.pages.begin(),
                           row.pages.begin() + pool.pages_for(group.prompt_size()));
        for (void* page : group.pages) {
          if (page != nullptr) pool.share(page);
        }
      }
    }
  } else {
    next_tokens_.assign(row.result.tokens.begin() + (row.position - group.prompt_size()),
                        row.result.tokens.end());
    next_tokens_.insert(next_tokens_.end(), row.drafts.begin(), row.drafts.begin() + num_drafts);
    builder_.add(std::span(next_tokens_).first(static_cast<size_t>(count)), row.position,
                 group.adapter, kept);
  }
  slices_.push_back({.id = id,
                     .begin = begin_row,
                     .end = begin_row + count,
                     .samples = samples,
                     .num_drafts = num_drafts,
                     .first_index = row.result.tokens.size(),
                     .ends_prompt = ends_prompt});
  drafts_.read += num_drafts;
  row.position = end;
}

// What a pass takes depends on these alone: of each slice its rows, its adapter and what is read.
bool SamplingLoop::is_like_last() {
  signature_.swap(last_signature_);
  signature_.clear();
  for (const Slice& slice : slices_) {
    const SampleRow& row = rows_.at(slice.id);
    const SampleGroup& group = group_of(row);
    const auto read = std::count(selected_.begin() + slice.begin, selected_.begin() + slice.end, 1);
    signature_.insert(signature_.end(), {slice.end - slice.begin, read,
                                         group.adapter == nullptr ? 0 : group.adapter->id(),
                                         !slice.samples               ? 0
                                         : choice_of(row).is_scaled() ? 2
                                                                      : 1});
  }
  return signature_ == last_signature_ && !signature_.empty();
}

std::span<const SampledToken> SamplingLoop::step() {
  sampled_.clear();
  if (active_.empty()) return sampled_;
  const TraceSpan span("sampling step", "step", num_steps_ + 1);
  plan_pass();
  hand_out_ahead();
  CHECK(!slices_.empty() || !sampled_.empty());  // the budget is at least one token
  if (!slices_.empty()) {
    select_rows(builder_.num_tokens());
    if (!is_like_last()) plan_ = room_.count([this](Backend& counter) { run_pass(counter); });
    room_.book(plan_);
    run_pass(room_.backend());
  }
  for (const Slice& slice : slices_) {
    if (slice.ends_prompt) group_of(rows_.at(slice.id)).has_values = true;
  }
  std::sort(sampled_.begin(), sampled_.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return sampled_;
}

// Rows that have a part in the pass have nothing in advance.
void SamplingLoop::hand_out_ahead() {
  const std::vector<size_t> active = active_;
  for (const size_t id : active) {
    SampleRow& row = rows_.at(id);
    if (row.ahead.empty()) continue;
    SampleChoice choice = std::move(row.ahead.front());
    row.ahead.erase(row.ahead.begin());
    use_choice(choice);
  }
}

void SamplingLoop::run_pass(Backend& backend) {
  const Scratch::Mark mark(backend.scratch());
  model::Pass pass =
      builder_.build(backend, *engine_.model().weights, room_.ropes(), engine_.cache_layout());
  const TensorView hidden = backend.scratch().take(
      pass.dtype(), {pass.num_tokens(), engine_.config().hidden_size}, "final_hidden");
  {
    const TraceSpan span = model::traced(pass, "forward", "tokens", pass.num_tokens());
    keep_before_drafts(backend);
    model::decoder_forward(pass, tape_, /*wants_backward=*/false, {}, hidden);
  }
  {
    const TraceSpan span = model::traced(pass, "choose tokens", "rows", std::ssize(slices_));
    read_logits(pass, hidden);
  }
  take_back_rejected(backend);
  if (engine_.options().draft_tokens > 0) make_drafts(pass);
}

// The head runs on the rows that someone reads: the last row of a slice that samples, and prompt
// rows whose logprobs are wanted.
void SamplingLoop::select_rows(int64_t num_tokens) {
  selected_.assign(static_cast<size_t>(num_tokens), 0);
  for (const Slice& slice : slices_) {
    if (slice.samples) {
      std::fill(selected_.begin() + (slice.end - 1 - slice.num_drafts),
                selected_.begin() + slice.end, 1);
    }
    const SampleRow& row = rows_.at(slice.id);
    const SampleGroup& group = group_of(row);
    if (!records_prompt(row)) continue;
    for (int64_t i = slice.begin; i < slice.end; ++i) {
      const int64_t next = row.position - (slice.end - i) + 1;
      if (next < group.prompt_size() && reads_position(*group.request, next))
        selected_[static_cast<size_t>(i)] = 1;
    }
  }
}

void SamplingLoop::read_logits(model::Pass& pass, TensorView hidden) {
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
    choices_.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      while (rows[i] >= slices_[slice].end) ++slice;
      const Slice& part = slices_[slice];
      SampleRow& row = rows_.at(part.id);
      SampleGroup& group = group_of(row);
      const auto logits_row = static_cast<int32_t>(i);
      const int64_t next = row.position - (part.end - rows[i]) + 1;
      bool reads_prompt = false;
      pass.on_host([&] { reads_prompt = records_prompt(row); });
      if (reads_prompt && next < group.prompt_size() && reads_position(*group.request, next)) {
        try {
          record_prompt(backend, group, next, {logits, lse, logits_row});
        } catch (const Error& error) {
          row.error = error.what();
        }
      }
      const int64_t first_sampled = part.end - 1 - part.num_drafts;
      if (!part.samples || rows[i] < first_sampled) continue;
      SampleChoice& choice = choices_.emplace_back();
      static_cast<ops::TokenChoice&>(choice) = choice_of(row);
      choice.id = part.id;
      choice.num_drafts = static_cast<size_t>(rows[i] - first_sampled);
      choice.row = logits_row;
      choice.step_index = part.first_index + choice.num_drafts;
      choice.error = row.error;
      const auto k = static_cast<size_t>(group.request->topk_sample_logprobs);
      choice.topk_ids.resize(k);
      choice.topk_logprobs.resize(k);
    }
    choose(backend, logits, lse);
  }
}

void SamplingLoop::record_prompt(Backend& backend, SampleGroup& group, int64_t position,
                                 const LogitsRow& of) {
  const auto at = static_cast<size_t>(position);
  const api::SampleRequest& request = *group.request;
  const auto read_logprob = [&](int32_t token, float& out) {
    ops::target_logprobs(backend, of.logits, of.lse, {&of.row, 1}, {&token, 1}, {&out, 1});
  };
  const auto [first_target, last_target] = targets_at(request, position);
  for (size_t i = first_target; i < last_target; ++i) {
    const int32_t id = request.prompt_targets.ids[i];
    if (id >= 0) read_logprob(id, group.prompt.prompt_target_logprobs[i]);
  }
  if (request.prompt_draws > 0) {
    const auto draws = static_cast<size_t>(request.prompt_draws);
    const size_t offset = (at - 1) * draws;
    ops::draw_tokens(backend, of.logits, of.lse, of.row,
                     {.temperature = request.temperature, .seed = request.seed}, offset,
                     std::span(group.prompt.prompt_draw_ids).subspan(offset, draws),
                     std::span(group.prompt.prompt_draw_logprobs).subspan(offset, draws));
  }
  if (!request.wants_prompt_logprobs() || position < request.first_prompt_logprob) return;
  read_logprob(request.prompt[at], group.prompt.prompt_logprobs[at]);
  const auto k = static_cast<size_t>(request.topk_prompt_logprobs);
  if (k == 0) return;
  ops::topk_logprobs(backend, of.logits, of.lse, of.row,
                     std::span(group.prompt.topk_ids).subspan(at * k, k),
                     std::span(group.prompt.topk_logprobs).subspan(at * k, k));
}

// One token for each choice. A row that cannot be read ends alone.
void SamplingLoop::choose(Backend& backend, TensorView logits, TensorView lse) {
  choosing_.clear();
  for (SampleChoice& choice : choices_) {
    if (choice.error.empty()) choosing_.push_back(&choice);
  }
  ops::choose_tokens(backend, logits, lse, choosing_);
  backend.on_host([&] {
    for (SampleChoice& choice : choices_) {
      if (choice.num_drafts > 0) {
        use_draft_choice(choice);
      } else {
        use_choice(choice);
      }
    }
  });
}

void SamplingLoop::use_choice(SampleChoice& choice) {
  SampleRow& row = rows_.at(choice.id);
  if (!choice.error.empty()) {
    row.error = choice.error;
    sampled_.push_back({.id = choice.id, .token = -1, .last = true});
    return finish(choice.id);
  }
  const api::SampleRequest& request = *group_of(row).request;
  api::SampleResult& result = row.result;
  result.tokens.push_back(choice.token);
  result.logprobs.push_back(choice.logprob);
  result.sample_topk_ids.insert(result.sample_topk_ids.end(), choice.topk_ids.begin(),
                                choice.topk_ids.end());
  result.sample_topk_logprobs.insert(result.sample_topk_logprobs.end(),
                                     choice.topk_logprobs.begin(), choice.topk_logprobs.end());
  result.stopped =
      std::find(request.stop.begin(), request.stop.end(), choice.token) != request.stop.end();
  const bool last =
      result.stopped || static_cast<int64_t>(result.tokens.size()) >= request.max_tokens;
  sampled_.push_back(
      {.id = choice.id, .token = choice.token, .logprob = choice.logprob, .last = last});
  if (last) finish(choice.id);
}

}  // namespace strata::engine
