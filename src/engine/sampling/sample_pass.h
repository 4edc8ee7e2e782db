// SPDX-License-Identifier: Apache-2.0
// SamplePass: the pass over what a step reads, and what comes of its logits: values of prompts and
// tokens. Of a model in stages every rank plans the same steps and runs its stage of them; the last
// one has the logits, and tells the others what they gave. Engine thread only.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/runner.h"
#include "engine/sampling/row_book.h"
#include "engine/sampling/sampling_drafts.h"
#include "engine/sampling/step_news.h"
#include "engine/sampling/step_planner.h"
#include "model/decoder.h"
#include "model/head.h"

namespace strata::engine {

struct SampledToken {
  size_t id = 0;  // the row
  int32_t token = 0;
  float logprob = 0.0f;
  bool last = false;  // the row is done
};

class SamplePass {
 public:
  // Borrows all of them. The pass runs in `workspace`.
  SamplePass(Runner& runner, PassWorkspace& workspace, RowBook& book, StepPlanner& step);

  // What the step that was planned last gives, in order of id.
  std::span<const SampledToken> run();
  [[nodiscard]] const DraftCounts& drafts() const { return draft_counts_; }

 private:
  [[nodiscard]] bool records_prompt(const SampleRow& row) {
    const SampleGroup& group = book_.group_of(row);
    return row.leads() && group.wants_prompt() && !group.has_values;
  }
  void append_tokens_ahead();
  bool update_signature();
  void run_pass(Backend& backend);
  [[nodiscard]] bool has_logits() const { return engine_.model().weights->ends(); }
  [[nodiscard]] bool shares() const { return runner_.comm().size() > 1; }
  [[nodiscard]] TensorView take_borders_and_hidden(model::Pass& pass);
  [[nodiscard]] TensorView run_layers(model::Pass& pass);
  void choose_next_tokens(model::Pass& pass, TensorView hidden);
  void share_masks(Backend& backend);
  void sync_masks();
  void take_shared_masks();
  void open_news();
  void select_head_rows();
  void select_prompt_rows(const StepSlice& slice);
  struct LogitsRow {  // logits [C, V] f32, lse [C, 2] f32
    TensorView logits, lse;
    int32_t row;
  };
  LogitsRow run_head(model::Pass& pass, std::span<const int32_t> rows, TensorView hidden);
  // A position of a prompt, and what a chunk of logits gives of it.
  struct RecordedPrompt {
    size_t row;
    int64_t position;
    PromptValues values;
  };
  void collect_choices(model::Pass& pass, std::span<const int32_t> rows, const LogitsRow& chunk,
                       size_t& slice);
  void record_values(model::Pass& pass, const StepSlice& slice, int32_t at, const LogitsRow& of);
  void add_choice(const StepSlice& slice, int32_t at, int32_t logits_row);
  void compute_prompt_values(Backend& backend, RecordedPrompt& recorded, const LogitsRow& of);
  void sync_news();
  void choose_tokens(Backend& backend, const LogitsRow& chunk);
  void commit_chunk();
  void append_sampled_token(size_t id, const ChosenToken& choice);

  Runner& runner_;
  Engine& engine_;
  PassWorkspace& workspace_;
  RowBook& book_;
  StepPlanner& step_;
  DraftCounts draft_counts_;
  std::optional<SamplingDrafts> drafts_;  // none: none are made
  StepNews news_, mask_news_;
  std::vector<SharedMask> shared_masks_;  // of the step's rows that share them, in their order
  std::vector<RecordedPrompt> recorded_;
  std::vector<SampledToken> sampled_;
  std::vector<uint8_t> selected_;
  std::vector<SampleChoice> choices_;
  std::vector<ops::TokenChoice*> choosing_;
  model::RowChunks chunks_;
  model::Tape tape_;
  PassPlan plan_;  // of the passes that look like the last one
  std::vector<int64_t> signature_, last_signature_;
};

}  // namespace strata::engine
