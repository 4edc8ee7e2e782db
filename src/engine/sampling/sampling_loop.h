// SPDX-License-Identifier: Apache-2.0
// SamplingLoop: continuous batching. Requests join at any time; each step reads a piece of every
// waiting prompt and decodes one token of every running row, all in shared passes over paged KV; a
// row leaves as soon as it is done and its pages go back. A row's tokens and logprobs depend on its
// own request alone, bit for bit: not on the other rows, the order of joining, sharing, the prompt
// chunks, the page size, what was found of its prompt or drafts (EngineOptions::draft_tokens); nor
// on whether it was set aside for a while, even if it gave its pages back then and read its prompt
// and its own tokens again; nor on the stages of the model. Its parts, of each stage that is asked
// here: the book of rows, what is read in a step, the pass. Engine thread only.
//   SamplingLoop loop(engine); const size_t id = loop.add(request);
//   while (!loop.done()) for (const SampledToken& token : loop.step()) ...;  loop.take_result(id)
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "api/batch.h"
#include "api/work.h"
#include "engine/runner.h"
#include "engine/sampling/row_book.h"
#include "engine/sampling/sample_pass.h"
#include "engine/sampling/step_planner.h"
#include "engine/stages.h"

namespace strata::engine {

class SamplingLoop {
 public:
  // Samples a whole model.
  explicit SamplingLoop(Engine& whole) : SamplingLoop(std::make_unique<Runner>(whole)) {}
  // Samples as one rank, all of which make the same calls.
  explicit SamplingLoop(Runner& runner) : SamplingLoop(runner, runner.engine().workspace()) {}
  // Its passes run in `workspace`, and its rows share `prefixes`, which may be null (all borrowed).
  SamplingLoop(Runner& runner, PassWorkspace& workspace, PrefixCache* prefixes = nullptr) {
    add_part(runner, workspace, prefixes);
  }
  // Samples all stages, which this thread asks for work. `prefixes`: of each one, or none.
  SamplingLoop(Stages& stages, const std::vector<std::unique_ptr<PrefixCache>>& prefixes);
  SamplingLoop(const SamplingLoop&) = delete;
  SamplingLoop& operator=(const SamplingLoop&) = delete;

  // Checks the request (Error on a fault) and queues it as one row.
  size_t add(const api::SampleRequest& request);

  // Several rows of one prompt, each with a seed of its own, joining when the caller likes. The
  // prompt's pages are kept until close_group(). `adapter`, if not none, is used in place of the
  // request's slot and kept alive by the rows. Steps are shared by `owner`.
  size_t open_group(const api::SampleRequest& request, std::shared_ptr<model::LoraAdapter> adapter,
                    uint64_t owner = 0);
  size_t open_group(const std::shared_ptr<const api::SampleRequest>& request,
                    const StagedAdapter& adapter, uint64_t owner,
                    const std::shared_ptr<SampleAnswer>& answer = nullptr);
  size_t add_row(size_t group, uint64_t seed) {
    size_t row = 0;
    all([&](RowBook& book) { row = book.add_row(group, seed); });
    return row;
  }
  // Which sample of its command the row is, and where its text ends (or null).
  void set_sample(size_t row, int64_t index, std::unique_ptr<StopText> stop) {
    book().set_sample(row, index, std::move(stop));
  }
  // The row, which has sampled nothing yet, samples what fits from where the matcher stands on, and
  // ends with an end token of its vocabulary.
  void set_matcher(size_t row, const structured::Matcher& matcher) {
    all([&](RowBook& book) { book.set_matcher(row, matcher.fork()); });
  }
  // The row takes the masks that the first of several processes sends, where its matcher is.
  void share_masks(size_t row) {
    all([&](RowBook& book) { book.share_masks(row); });
  }
  // A group whose weights are not there yet, and their arrival: its rows count as running, and take
  // no part in steps before it.
  void await_weights(size_t group) {
    all([&](RowBook& book) { book.await_weights(group); });
  }
  void give_weights(size_t group, const StagedAdapter& adapter);
  void close_group(size_t group) {
    all([&](RowBook& book) { book.close_group(group); });
  }

  // The row takes no part in steps until resume(). It keeps its pages and its state if `keep`, and
  // if no other row may wait for it to read the prompt; whether it did.
  bool preempt_row(size_t row, bool keep) {
    bool kept = false;
    all([&](RowBook& book) { kept = book.preempt_row(row, keep); });
    return kept;
  }
  // A row that is aside gives back what it kept.
  void give_up_pages(size_t row) {
    all([&](RowBook& book) { book.give_up_pages(row); });
  }
  // It is not to be set aside before it has sampled `runs_until` tokens.
  void resume(size_t row, int64_t runs_until = 0) {
    all([&](RowBook& book) { book.resume(row, runs_until); });
  }
  // The table, by id. Rows go when they are taken, groups with the last row once they are closed.
  [[nodiscard]] const std::map<size_t, SampleRow>& rows() const { return book().rows(); }
  [[nodiscard]] const std::map<size_t, SampleGroup>& groups() const { return book().groups(); }
  [[nodiscard]] const SampleRow& row(size_t id) const { return book().row(id); }
  [[nodiscard]] const SampleGroup& group(size_t id) const { return book().group(id); }
  [[nodiscard]] const SampleGroup& group_of(const SampleRow& row) const {
    return book().group_of(row);
  }
  // Tokens that a step may read and sample, but for one of each row where one owner has all rows.
  // 0: the engine's prefill_tokens, which it never exceeds.
  void set_step_tokens(int64_t tokens) { step_tokens_ = tokens; }
  // How many tokens the last step had.
  [[nodiscard]] int64_t last_tokens() const { return parts_[0]->step.builder().num_tokens(); }

  // No row has anything to do in a step.
  [[nodiscard]] bool done() const { return num_running() == num_waiting(); }
  [[nodiscard]] int64_t num_waiting() const { return book().num_waiting(); }
  [[nodiscard]] int64_t num_running() const { return std::ssize(book().active()); }
  // Runs one pass; the tokens it sampled, at most one a row, in order of id: a row that drafts have
  // given tokens in advance yields the next of these, and has no part in the pass. A row whose
  // logits are not finite ends, and take_result() throws its Error. Where this throws, the rows of
  // stages may differ: all have to be finished, and the caches of prefixes cleared.
  std::span<const SampledToken> step();
  using Drafts = DraftCounts;
  [[nodiscard]] const Drafts& drafts() const { return parts_[0]->pass.drafts(); }
  [[nodiscard]] const RowBook::PrefixCounts& prefix_counts() const {
    return book().prefix_counts();
  }
  // Ends a row now, as a stop string does; its result keeps the tokens so far.
  void finish(size_t id) {
    all([&](RowBook& book) { book.finish(id); });
  }
  // The result of a finished row, which is then forgotten; prompt values are the first row's.
  api::SampleResult take_result(size_t id);

 private:
  // What a stage has; all have the same rows.
  struct Part {
    Part(Runner& runner, PassWorkspace& workspace, PrefixCache* prefixes)
        : book(runner.engine(), prefixes),
          step(runner.engine(), book),
          pass(runner, workspace, book, step) {}
    RowBook book;
    StepPlanner step;
    SamplePass pass;
  };
  explicit SamplingLoop(std::unique_ptr<Runner> own) : SamplingLoop(*own) { own_ = std::move(own); }

  void add_part(Runner& runner, PassWorkspace& workspace, PrefixCache* prefixes) {
    parts_.push_back(std::make_unique<Part>(runner, workspace, prefixes));
  }
  [[nodiscard]] RowBook& book() { return parts_[0]->book; }
  [[nodiscard]] const RowBook& book() const { return parts_[0]->book; }
  // Changes the rows of all stages alike.
  template <typename Change>
  void all(Change change) {
    for (const auto& part : parts_) change(part->book);
  }

  std::unique_ptr<Runner> own_;  // or none
  Stages* stages_ = nullptr;     // of the parts; null: the one part is the caller's own
  std::vector<std::unique_ptr<Part>> parts_;
  int64_t step_tokens_ = 0;
};

// Samples all requests together; results in request order.
std::vector<api::SampleResult> sample(Runner& runner,
                                      const std::vector<api::SampleRequest>& requests);

// Preemption: what the rows of a SamplingLoop share (pages of the cache, states, places in the
// batch), and which rows are set aside for another tenant's. A row that runs counts for all it may
// come to hold, one that is aside for what it keeps, or for nothing. Keeps no books: all follows
// from the rows, each of which is a command's. Engine thread only.
class Preemption {
 public:
  // Borrows both.
  Preemption(const Engine& engine, SamplingLoop& loop, int64_t max_rows)
      : engine_(engine), loop_(loop), max_rows_(max_rows) {}

  // For sample `index` of the command, of the tenant's rows; and where nothing runs, of all that is
  // kept for later.
  void make_space(const api::TenantId& tenant, const api::Sample& sample, int64_t index);
  // Takes space for a row of the tenant's that is aside from those it may be taken from; the row
  // runs on if there is enough then.
  void try_resume(const api::ResumeRow& row);

  // Rows that may join.
  [[nodiscard]] int64_t free_rows() const;
  // KV pages that the rows hold or may still take.
  [[nodiscard]] int64_t reserved_pages() const;
  // States of sequences that nobody may take: a row has one, and so has the prompt of a request of
  // several rows. No limit: INT64_MAX.
  [[nodiscard]] int64_t free_states() const;
  // What each tenant holds.
  [[nodiscard]] std::vector<api::SampleShare> shares() const;

 private:
  [[nodiscard]] const SampleGroup& group_of(const SampleRow& row) const {
    return loop_.groups().at(row.group);
  }
  [[nodiscard]] const api::TenantId& tenant_of(const SampleRow& row) const {
    return group_of(row).answer->command->tenant;
  }
  [[nodiscard]] int64_t prompt_pages(const SampleGroup& group) const;
  [[nodiscard]] int64_t row_pages(const SampleRow& row, int64_t new_tokens,
                                  bool shares_prompt) const;
  [[nodiscard]] int64_t kept_tokens(const SampleRow& row) const;
  [[nodiscard]] int64_t reserved_pages(const SampleRow& row) const;
  void add_to_share(const SampleRow& row, api::SampleShare& share) const;
  [[nodiscard]] api::PageNeed space_needed_to_resume(const SampleRow& row) const;
  [[nodiscard]] bool has_budget(const api::PageNeed& need) const;
  void make_space_to_resume(size_t id, const api::TenantId& takes_from);
  bool preempt_one(const api::TenantId& tenant, const api::PageNeed& need);
  [[nodiscard]] std::optional<size_t> find_victim(const api::TenantId& tenant,
                                                  const api::PageNeed& need, bool keep) const;
  [[nodiscard]] std::optional<size_t> find_row_to_resume(const api::TenantId& tenant) const;
  // The pages of a row that is aside go, so that it is read again: one of this tenant's (null: of
  // anybody's), not `except` (kNoRow: any). False where no such row has pages.
  bool evict_preempted(const api::TenantId* tenant, size_t except);

  const Engine& engine_;
  SamplingLoop& loop_;
  const int64_t max_rows_;
};

}  // namespace strata::engine
