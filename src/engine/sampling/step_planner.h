// SPDX-License-Identifier: Apache-2.0
// StepPlanner: what each row reads in a step, as slices of one flat batch: the tokens of a step are
// shared by owner (step_tokens.h), rows that decode before prompts. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/pass_builder.h"
#include "engine/sampling/row_book.h"
#include "engine/sampling/step_tokens.h"

namespace strata::engine {

struct StepSlice {  // a row's part of the pass
  size_t id = 0;
  int64_t begin = 0, end = 0;  // rows of the flat batch
  bool samples = false;        // its last row yields a token
  int64_t num_drafts = 0;      // its last rows; each yields a token, and so does the one before
  size_t first_index = 0;      // of what it samples
  bool ends_prompt = false;    // its group's prompt has been read
};

class StepPlanner {
 public:
  StepPlanner(const Engine& engine, RowBook& book) : engine_(engine), book_(book) {}

  // The next step. step_tokens as SamplingLoop::set_step_tokens has it.
  void plan(int64_t step_tokens);
  [[nodiscard]] std::span<const StepSlice> slices() const { return slices_; }
  // Their tokens. What is added to it is of the same step.
  [[nodiscard]] PassBuilder& builder() { return builder_; }
  [[nodiscard]] const PassBuilder& builder() const { return builder_; }
  [[nodiscard]] int64_t num_steps() const { return num_steps_; }

  // Drafts that the row may have behind its last token and what is ahead.
  [[nodiscard]] int64_t most_drafts(const SampleRow& row) const;

 private:
  [[nodiscard]] int64_t next_piece(size_t id, int64_t budget);
  void sort_rows();
  void add_slice(size_t id, int64_t count);
  [[nodiscard]] int64_t drafts_to_read(const SampleRow& row) const;
  [[nodiscard]] int64_t reach_of_drafts(const SampleRow& row, int64_t end) const;

  const Engine& engine_;
  RowBook& book_;
  int64_t num_steps_ = 0;
  std::vector<size_t> decoding_, reading_;
  std::vector<StepClaim> claims_;
  std::vector<StepSlice> slices_;
  std::vector<int32_t> next_tokens_;
  PassBuilder builder_;
};

}  // namespace strata::engine
