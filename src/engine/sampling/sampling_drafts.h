// SPDX-License-Identifier: Apache-2.0
// SamplingDrafts: tokens that multi-token prediction foresees for the rows of a step. Rows read
// them behind their own tokens; what is sampled behind a draft counts where that draft is what was
// sampled before it, and else the row stands before it again. So a draft changes no token and no
// number, only how many a step gives. Engine thread only.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/sampling/row_book.h"
#include "engine/sampling/step_planner.h"
#include "model/decoder.h"
#include "model/head.h"

namespace strata::engine {

class SamplingDrafts {
 public:
  // Borrows all of them; adds to `counts`.
  SamplingDrafts(Engine& engine, RowBook& book, StepPlanner& step, DraftCounts& counts)
      : engine_(engine), book_(book), step_(step), counts_(counts) {}

  void count(const StepSlice& slice) { counts_.read += slice.num_drafts; }

  // In this order: before the layers of a pass run; for each choice behind a draft; once all tokens
  // of the step are known; and then, of a pass whose layers gave `states` [T, n D], or what the
  // head reads (model::mtp_state).
  void save_draft_rows(Backend& backend);
  void verify_draft(SampleChoice& choice);
  void roll_back_rejected(model::Pass& pass);
  void draft(model::Pass& pass, TensorView states);

 private:
  int64_t rewind_rejected(Backend& backend, const StepSlice& slice);
  void draft_further(model::Pass& pass, TensorView states);
  void collect_known_rows(const model::Pass& pass);
  std::vector<const SampleRow*> save_listed_rows(model::Pass& pass, int64_t count);
  void list_drafted_rows(const model::Pass& pass, int64_t num_drafts);
  void propose_drafts(model::Pass& pass, TensorView from, TensorView states);
  void gather_last_states(const model::Pass& own, TensorView from, TensorView states);
  void select_last_rows(const model::Pass& own);
  void list_choices(const model::Pass& own, std::span<const int32_t> rows, size_t& next);
  void choose_drafts(model::Pass& own, TensorView hidden);
  void add_choice(size_t id, int64_t logits_row);

  Engine& engine_;
  RowBook& book_;
  StepPlanner& step_;
  DraftCounts& counts_;
  model::Tape tape_;
  PassBuilder builder_;
  model::RowChunks chunks_;
  // Reused.
  std::vector<int32_t> rows_;  // of the pass
  std::vector<uint8_t> selected_;
  std::vector<size_t> slices_;  // whose rows these are
  std::vector<int32_t> next_tokens_;
  std::vector<SampleChoice> choices_;
  std::vector<ops::TokenChoice*> choosing_;
};

}  // namespace strata::engine
