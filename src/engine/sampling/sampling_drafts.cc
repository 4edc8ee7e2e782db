// Drafts of a SamplingLoop: multi-token prediction behind the rows of a pass, and what it takes for
// each row's next token but one.
#include "engine/sampling/sampling_loop.h"
#include "model/mtp.h"
#include "ops/elementwise.h"
#include "sample/sampler.h"

namespace strata::engine {

// The layer reads every row of the pass whose next token is known by now, which leaves its keys in
// the cache; of a rejected draft's row there is none, and a row that is done needs none.
void SamplingLoop::make_drafts(model::Pass& pass) {
  const TraceSpan span = model::traced(pass, "drafts", "rows", std::ssize(slices_));
  mtp_builder_.clear();
  mtp_rows_.clear();
  mtp_slices_.clear();
  for (size_t s = 0; s < slices_.size(); ++s) {
    const Slice& slice = slices_[s];
    const SampleRow& row = rows_.at(slice.id);
    if (row.finished) continue;
    const model::PassSequence& sequence = pass.sequences[s];
    const SampleGroup& group = group_of(row);
    const int64_t prompt = group.prompt_size();
    const auto num_sampled = std::ssize(row.result.tokens);
    next_tokens_.clear();
    for (int64_t i = 0; i < slice.end - slice.begin; ++i) {
      const int64_t next = sequence.first_position + i + 1;  // its position
      int32_t token = 0;                                     // a plan's
      if (next < prompt) {
        token = group.request->prompt[static_cast<size_t>(next)];
      } else if (next - prompt < num_sampled) {
        token = row.result.tokens[static_cast<size_t>(next - prompt)];
      } else if (row.ahead && next - prompt == num_sampled) {
        token = row.ahead->token;
      } else if (!pass.backend.is_counting()) {
        break;
      }
      next_tokens_.push_back(token);
      mtp_rows_.push_back(static_cast<int32_t>(slice.begin + i));
    }
    mtp_slices_.push_back(s);
    mtp_builder_.add(next_tokens_, sequence.first_position, sequence.adapter, sequence.kept);
  }
  if (mtp_rows_.empty()) return;
  model::Pass own = mtp_builder_.build_beside(pass);
  own.is_mtp = true;
  const Scratch::Mark mark(pass.backend.scratch());
  const auto count = std::ssize(mtp_rows_);
  const TensorView state = own.take(own.dtype(), {count, tape_.last.cols()});
  const TensorView hidden = own.take(own.dtype(), {count, engine_.config().hidden_size});
  ops::gather(own.backend, tape_.last, mtp_rows_, state);
  model::mtp_forward(own, mtp_tape_, /*wants_backward=*/false, state, hidden);
  choose_drafts(own, hidden);
}

// By the row's own settings and the random numbers of the position, so that a draft is what is
// sampled wherever both distributions agree.
void SamplingLoop::choose_drafts(model::Pass& own, TensorView hidden) {
  Backend& backend = own.backend;
  draft_selected_.assign(mtp_rows_.size(), 0);
  for (size_t i = 0; i < mtp_slices_.size(); ++i) {
    if (slices_[mtp_slices_[i]].samples)
      draft_selected_[static_cast<size_t>(own.sequences[i].end - 1)] = 1;
  }
  const int64_t vocab = engine_.config().vocab_size;
  size_t next = 0;  // of the slices
  chunks_.start(own, draft_selected_);
  for (auto rows = chunks_.next(); !rows.empty(); rows = chunks_.next()) {
    const Scratch::Mark mark(backend.scratch());
    const auto count = static_cast<int64_t>(rows.size());
    const TensorView x = own.take(own.dtype(), {count, hidden.cols()});
    const TensorView logits = own.take(DType::kF32, {count, vocab});
    ops::gather(backend, hidden, rows, x);
    model::head_forward(own, chunks_.groups(), x, {}, logits);
    if (backend.is_counting()) continue;
    const HostAccess access(backend.allocator());  // tokens are chosen from logits where they lie
    for (int64_t i = 0; i < count; ++i) {
      while (own.sequences[next].end <= rows[static_cast<size_t>(i)]) ++next;
      SampleRow& row = rows_.at(slices_[mtp_slices_[next]].id);
      const api::SampleRequest& request = *group_of(row).request;
      const std::span<const float> values(logits.f32() + i * vocab, static_cast<size_t>(vocab));
      try {
        row.draft = sample::choose_token(values,
                                         {.temperature = request.temperature,
                                          .top_k = request.top_k,
                                          .top_p = request.top_p,
                                          .seed = row.seed},
                                         row.result.tokens.size() + (row.ahead ? 1 : 0));
      } catch (const std::exception&) {
        row.draft.reset();  // no numbers: nothing is taken for the next token
      }
    }
  }
}

}  // namespace strata::engine
