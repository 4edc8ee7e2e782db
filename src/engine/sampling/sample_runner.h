// SampleRunner: the samples of a server in one running batch. Turns api::Sample into rows of a
// SamplingLoop, and rows that end into results, by the rules of the server: logprobs of
// softmax(logits / temperature), sample i drawn from the stream (seed, i), stop texts. Counts the
// pages that rows may come to hold, and sets rows of one tenant aside where those of another are to
// have their room. Engine thread only.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "api/result.h"
#include "api/work.h"
#include "engine/sampling/sampling_loop.h"
#include "engine/sampling/snapshots.h"
#include "engine/sampling/step_budget.h"
#include "engine/sampling/stop_text.h"

namespace strata::engine {

// The seed of sample i of a request.
uint64_t sample_seed(uint64_t seed, int64_t i);

class SampleRunner {
 public:
  // `tokenizer` may be null: then stop texts are refused. Steps run in `room` (borrowed).
  SampleRunner(Engine& engine, PassRoom& room, SnapshotCache& snapshots,
               const text::Tokenizer* tokenizer, int64_t max_rows)
      : engine_(engine),
        snapshots_(snapshots),
        tokenizer_(tokenizer),
        max_rows_(max_rows),
        loop_(engine, room) {}

  // The rows join; an Error of the request goes to `results`.
  void join(const api::SampleRows& rows, std::vector<api::Result>& results);
  // The row runs on if there is room for it.
  void resume(const api::ResumeRow& row);
  void cancel(const api::RequestId& request);
  // One step of all rows. A fault that is not one row's own fails every running request.
  void step(std::vector<api::Result>& results);

  [[nodiscard]] int64_t num_running() const { return loop_.num_running(); }
  [[nodiscard]] int64_t sampled_tokens() const { return sampled_tokens_; }
  [[nodiscard]] const SamplingLoop::Drafts& drafts() const { return loop_.drafts(); }
  // KV pages that the rows hold or may still take.
  [[nodiscard]] int64_t reserved_pages() const { return reserved_pages_; }
  // States of sequences that nobody may take: a row has one, and so has the prompt of a request of
  // several rows. No limit: INT64_MAX.
  [[nodiscard]] int64_t free_states() const;
  // What each tenant holds.
  [[nodiscard]] std::vector<api::SampleShare> shares() const;

 private:
  // Where a row is, and what it counts for.
  enum class Place : uint8_t { kRuns, kAsideWithPages, kAside };
  struct Row {
    api::RequestId request;
    int64_t index = 0;  // of the sample
    std::unique_ptr<StopText> stop;
    int64_t pages = 0;           // reserved for it, beside its request's prompt
    bool shares_prompt = false;  // begins behind the prompt, on a page of its own
    Place place = Place::kRuns;
    int64_t runs_until = 0;  // not set aside before it has sampled so many tokens
  };
  struct Need {
    int64_t pages = 0;
    int64_t states = 0;
  };
  struct Request {
    std::shared_ptr<const api::Command> command;
    size_t group = 0;
    bool closed = false;
    int64_t prompt_pages = 0;   // held until the last row has ended, or all are aside
    int64_t prompt_states = 0;  // likewise
    bool holds_prompt = false;
    int64_t left = 0;          // samples without an end
    std::vector<size_t> rows;  // that run or are aside
    api::SampleOutput output;
    [[nodiscard]] const api::Sample& sample() const { return std::get<api::Sample>(command->op); }
  };

  void open(const std::shared_ptr<const api::Command>& command);
  void add_row(Request& request, int64_t index);
  void end_row(size_t row, bool stopped, std::vector<api::Result>& results);
  void take_prompt(Request& request, api::SampleResult& result);
  void drop(const api::RequestId& request);
  void drop_all(const std::string& reason, std::vector<api::Result>& results);

  // engine/sampling/sample_room.cc
  [[nodiscard]] static uint64_t owner(const api::TenantId& tenant);
  [[nodiscard]] const api::TenantId& tenant_of(const Row& row) const {
    return requests_.at(row.request).command->tenant;
  }
  [[nodiscard]] int64_t prompt_size(const Row& row) const;
  [[nodiscard]] int64_t row_pages(const Row& row, int64_t new_tokens, bool shares_prompt) const;
  [[nodiscard]] int64_t row_pages(const Row& row, int64_t new_tokens) const;
  [[nodiscard]] Need need_to_resume(const Row& row) const;
  [[nodiscard]] Need need_to_join(const api::Sample& sample, int64_t index) const;
  [[nodiscard]] bool has_room(const Need& need) const;
  void make_room(const api::TenantId& tenant, const Need& need);
  bool take_room(const api::TenantId& tenant, const Need& need);
  [[nodiscard]] std::optional<size_t> row_to_set_aside(const api::TenantId& tenant,
                                                       const Need& need, bool keep) const;
  [[nodiscard]] bool may_be_set_aside(size_t row) const;
  void set_aside(size_t row, bool keep);
  bool give_up_pages(const api::TenantId* tenant, size_t but);
  void forget_pages(Row& row);
  void forget_row(size_t row);
  void reserve(Row& row, int64_t pages);
  void hold_prompt(Request& request, bool holds);
  void let_go_of_prompt(Request& request);

  static constexpr size_t kNoRow = SIZE_MAX;

  Engine& engine_;
  SnapshotCache& snapshots_;
  const text::Tokenizer* tokenizer_;
  const int64_t max_rows_;
  SamplingLoop loop_;
  StepBudget budget_;
  std::unordered_map<api::RequestId, Request> requests_;
  std::unordered_map<size_t, Row> rows_;
  std::map<api::TenantId, std::deque<size_t>> aside_;  // the first is the first to run on
  int64_t reserved_pages_ = 0;
  int64_t reserved_states_ = 0;
  int64_t sampled_tokens_ = 0;
};

}  // namespace strata::engine
