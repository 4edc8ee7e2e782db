// SPDX-License-Identifier: Apache-2.0
// SamplingLoop: continuous batching. Requests join at any time; each step reads a piece of every
// waiting prompt and decodes one token of every running row, all in shared passes over paged KV; a
// row leaves as soon as it is done and its pages go back. Rows of one prompt share its pages: it is
// read once; where sequences have a state of their own (model/cache_layout.h), up to the last page
// border, where the first row's state is copied. A row's tokens and logprobs depend on its own
// request alone, bit for bit: not on the other rows, the order of joining, sharing, the prompt
// chunks, the page size or drafts (EngineOptions::draft_tokens); nor on whether it was set aside
// for a while, even if it gave its pages back then and read its prompt and its own tokens again.
// Engine thread only.
//   SamplingLoop loop(engine); const size_t id = loop.add(request);
//   while (!loop.done()) for (const SampledToken& token : loop.step()) ...;  loop.take(id)
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "api/batch.h"
#include "engine/engine.h"
#include "engine/sampling/sample_rows.h"
#include "engine/sampling/step_share.h"
#include "model/head.h"

namespace strata::engine {

struct SampledToken {
  size_t id = 0;  // the row: what add() returned
  int32_t token = 0;
  float logprob = 0.0f;
  bool last = false;  // the row is done
};

class SamplingLoop {
 public:
  explicit SamplingLoop(Engine& engine) : SamplingLoop(engine, engine.room()) {}
  // Its passes run in `room` (borrowed).
  SamplingLoop(Engine& engine, PassRoom& room) : engine_(engine), room_(room) {}
  ~SamplingLoop();
  SamplingLoop(const SamplingLoop&) = delete;
  SamplingLoop& operator=(const SamplingLoop&) = delete;

  // Checks the request (Error on a fault) and queues it as one row.
  size_t add(const api::SampleRequest& request);

  // Several rows of one prompt, each with a seed of its own, joining when the caller likes. The
  // prompt's pages are kept until close(). `adapter`, if not null, is used in place of the
  // request's slot and kept alive by the rows. Steps are shared by `owner`.
  size_t open(const api::SampleRequest& request, std::shared_ptr<model::LoraAdapter> adapter,
              uint64_t owner = 0) {
    return open(std::make_shared<const api::SampleRequest>(request), std::move(adapter), owner);
  }
  size_t open(std::shared_ptr<const api::SampleRequest> request,
              std::shared_ptr<model::LoraAdapter> adapter, uint64_t owner);
  size_t add_row(size_t group, uint64_t seed);
  void close(size_t group);

  // The row takes no part in steps until resume(). It keeps its pages and its state if `keep`, and
  // if no other row may wait for it to read the prompt; whether it did.
  bool set_aside(size_t row, bool keep);
  // A row that is aside gives back what it kept.
  void give_up_pages(size_t row);
  void resume(size_t row);
  // The table, by id. Rows go when they are taken, groups with the last row once they are closed.
  [[nodiscard]] const std::map<size_t, SampleRow>& rows() const { return rows_; }
  [[nodiscard]] const std::map<size_t, SampleGroup>& groups() const { return groups_; }
  [[nodiscard]] SampleRow& row(size_t id) { return rows_.at(id); }
  [[nodiscard]] SampleGroup& group(size_t id) { return groups_.at(id); }
  [[nodiscard]] SampleGroup& group_of(const SampleRow& row) { return groups_.at(row.group); }
  // Tokens that a step may read and sample, but for one of each row where one owner has all rows.
  // 0: the engine's prefill_tokens, which it never exceeds.
  void set_step_tokens(int64_t tokens) { step_tokens_ = tokens; }
  // Of the last step.
  [[nodiscard]] int64_t last_tokens() const { return builder_.num_tokens(); }

  [[nodiscard]] bool done() const { return active_.empty(); }
  [[nodiscard]] int64_t num_running() const { return static_cast<int64_t>(active_.size()); }
  // Runs one pass; the tokens it sampled, at most one a row, in order of id: a row that drafts have
  // given tokens in advance yields the next of these, and has no part in the pass. A row whose
  // logits are not finite ends, and take() throws its Error.
  std::span<const SampledToken> step();
  // Of all steps: drafts that were read, and of these the ones that were what was sampled.
  struct Drafts {
    int64_t read = 0;
    int64_t accepted = 0;
  };
  [[nodiscard]] const Drafts& drafts() const { return drafts_; }
  // Ends a row now, as a stop string does; its result keeps the tokens so far.
  void finish(size_t id);
  // The result of a finished row, which is then forgotten; prompt values are the first row's.
  api::SampleResult take(size_t id);

 private:
  struct Slice {  // a row's part of the pass
    size_t id = 0;
    int64_t begin = 0, end = 0;  // rows of the flat batch
    bool samples = false;        // its last row yields a token
    int64_t num_drafts = 0;      // its last rows; each yields a token, and so does the one before
    size_t first_index = 0;      // of what it samples
    bool ends_prompt = false;    // its group's prompt has been read
  };
  // Tokens that are not in its cache yet: of the prompt, and its own.
  [[nodiscard]] int64_t unread(const SampleRow& row) {
    return group_of(row).prompt_size() + row.num_sampled() - row.position;
  }
  [[nodiscard]] bool records_prompt(const SampleRow& row) {
    const SampleGroup& group = group_of(row);
    return row.leads && group.wants_prompt() && !group.has_values;
  }
  [[nodiscard]] bool shares(const SampleGroup& group) const {
    return !group.closed || group.num_rows > 1;
  }
  [[nodiscard]] int64_t shared_positions(const SampleGroup& group) const;
  void join_prompt(SampleRow& row);
  [[nodiscard]] int64_t next_piece(SampleRow& row, int64_t room);
  void sort_rows();
  void plan_pass();
  void add_slice(size_t id, int64_t count);
  [[nodiscard]] int64_t drafts_to_read(const SampleRow& row);
  [[nodiscard]] int64_t most_drafts(const SampleRow& row);
  [[nodiscard]] int64_t reach_of_drafts(const SampleRow& row, int64_t end);
  void hand_out_ahead();
  bool is_like_last();
  void run_pass(Backend& backend);
  void read_logits(model::Pass& pass, TensorView hidden);
  void select_rows(int64_t num_tokens);
  [[nodiscard]] ops::TokenChoice choice_of(const SampleRow& row);
  struct LogitsRow {  // logits [C, V] f32, lse [C, 2] f32
    TensorView logits, lse;
    int32_t row;
  };
  void record_prompt(Backend& backend, SampleGroup& group, int64_t position, const LogitsRow& of);
  void choose(Backend& backend, TensorView logits, TensorView lse);
  void use_choice(SampleChoice& choice);
  void use_draft_choice(SampleChoice& choice);
  void keep_before_drafts(Backend& backend);
  void take_back_rejected(Backend& backend);
  void make_drafts(model::Pass& pass);
  void make_further_drafts(model::Pass& pass, TensorView states);
  void list_known_rows(const model::Pass& pass);
  void list_drafted_rows(const model::Pass& pass, int64_t num_drafts);
  void run_drafts(model::Pass& pass, TensorView from, TensorView states);
  void choose_drafts(model::Pass& own, TensorView hidden);
  void release(std::vector<void*>& pages, void*& state);
  void vacate(size_t row);
  void drop_if_unused(size_t group);

  Engine& engine_;
  PassRoom& room_;
  std::map<size_t, SampleGroup> groups_;
  std::map<size_t, SampleRow> rows_;
  size_t next_id_ = 0;  // of rows
  size_t next_group_ = 0;
  int64_t num_asides_ = 0;  // ever
  int64_t num_steps_ = 0;
  int64_t step_tokens_ = 0;
  std::vector<size_t> active_;  // rows not finished and not aside, ascending
  std::vector<size_t> decoding_, reading_;
  std::vector<StepClaim> claims_;
  std::vector<Slice> slices_;
  std::vector<SampledToken> sampled_;
  std::vector<uint8_t> selected_;
  std::vector<SampleChoice> choices_;
  std::vector<ops::TokenChoice*> choosing_;
  model::RowChunks chunks_;
  model::Tape tape_, mtp_tape_;
  PassBuilder builder_, mtp_builder_;
  std::vector<int32_t> mtp_rows_;  // of the pass
  std::vector<uint8_t> draft_selected_;
  std::vector<size_t> mtp_slices_;  // whose rows these are
  std::vector<int32_t> next_tokens_;
  Drafts drafts_;
  PassPlan plan_;  // of the passes that look like the last one
  std::vector<int64_t> signature_, last_signature_;
};

}  // namespace strata::engine
