// SPDX-License-Identifier: Apache-2.0
// What a sampling step reads: how many tokens, whose they are, and as slices of one flat batch
// which row's. Engine thread only; StepBudget and divide_step_tokens() are plain arithmetic.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/pass_workspace.h"
#include "engine/sampling/row_book.h"

namespace strata::engine {

// StepBudget: how many tokens a step may hold so that it lasts no longer than another tenant's
// sample should wait for the next one. Learns from the steps that ran.
class StepBudget {
 public:
  static constexpr double kSeconds = 0.4;  // that a step should last at most
  static constexpr int64_t kLeast = 32;    // fewer would not pay for reading the weights
  static constexpr int64_t kMost = 4096;

  [[nodiscard]] int64_t tokens() const { return tokens_; }
  // Takes over what another process has learnt.
  void set_tokens(int64_t tokens) { tokens_ = tokens; }
  void adapt(int64_t tokens, double seconds) {
    if (seconds > kSeconds) {
      const auto fit = static_cast<int64_t>(static_cast<double>(tokens) * kSeconds / seconds);
      tokens_ = std::clamp(fit, kLeast, tokens_);
    } else if (tokens >= tokens_ && seconds < kSeconds / 2) {
      tokens_ = std::min(2 * tokens_, kMost);
    }
  }

 private:
  int64_t tokens_ = 128;
};

// What one of those whose rows run claims of a step. With one owner all rows that decode go, and
// prompts get what is left. With several each gets as much as another (max-min): who asks for less
// than the share gets all of it.
struct StepClaim {
  uint64_t owner = 0;
  int64_t decoding = 0;  // rows that would give a token
  int64_t prompt = 0;    // tokens that would be read
  // What it gets.
  int64_t granted_decoding = 0;
  int64_t granted_prompt = 0;
};

// `budget` >= 1 tokens; `turn` says with whom the first share begins, so that none is always last
// when there are more owners than tokens.
void divide_step_tokens(std::span<StepClaim> claims, int64_t budget, uint64_t turn);

struct StepSlice {  // a row's part of the pass
  size_t id = 0;
  int64_t begin = 0, end = 0;  // rows of the flat batch
  bool samples = false;        // its last row yields a token
  int64_t num_drafts = 0;      // its last rows; each yields a token, and so does the one before
  size_t first_index = 0;      // of what it samples
  bool ends_prompt = false;    // its group's prompt has been read
};

// StepPlanner: what each row reads, rows that decode before prompts.
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
  void classify_rows();
  StepClaim& ensure_claim(uint64_t owner);
  [[nodiscard]] StepClaim& claim_of(size_t id);
  void keep_granted_decoding();
  void sort_decoding_by_adapter();
  void add_decoding_slices(int64_t budget);
  void add_reading_slices();
  void schedule_slice(size_t id, int64_t count);
  void add_tokens(const SampleRow& row, int64_t count, int64_t num_drafts);
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
