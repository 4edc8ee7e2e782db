// SampleRunner: the samples of a server in one running batch. Turns api::Sample into rows of a
// SamplingLoop, and rows that end into results, by the rules of the server: logprobs of
// softmax(logits / temperature), sample i drawn from the stream (seed, i), stop texts. Engine
// thread only.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "api/result.h"
#include "api/work.h"
#include "engine/sampling_loop.h"
#include "engine/snapshots.h"
#include "engine/stop_text.h"

namespace strata::engine {

// The seed of sample i of a request.
uint64_t sample_seed(uint64_t seed, int64_t i);

class SampleRunner {
 public:
  // `tokenizer` may be null: then stop texts are refused.
  SampleRunner(Engine& engine, SnapshotCache& snapshots, const text::Tokenizer* tokenizer)
      : engine_(engine), snapshots_(snapshots), tokenizer_(tokenizer), loop_(engine) {}

  // The rows join; an Error of the request goes to `results`.
  void join(const api::SampleRows& rows, std::vector<api::Result>& results);
  void cancel(const api::RequestId& request);
  // One step of all rows. A fault that is not one row's own fails every running request.
  void step(std::vector<api::Result>& results);

  [[nodiscard]] int64_t num_running() const { return loop_.num_running(); }
  // KV pages that the running rows hold or may still take.
  [[nodiscard]] int64_t reserved_pages() const { return reserved_pages_; }
  // Rows that may join by what is left of sequences' states: one each, and one for the prompt of a
  // request of several, so half of them is safe whatever joins. No limit: INT64_MAX.
  [[nodiscard]] int64_t rows_by_state() const;

 private:
  struct Row {
    api::RequestId request;
    int64_t index = 0;  // of the sample
    std::unique_ptr<StopText> stop;
    int64_t pages = 0;
  };
  struct Request {
    std::shared_ptr<const api::Command> command;
    size_t group = 0;
    bool closed = false;
    int64_t prompt_pages = 0;  // held until the last row has ended
    int64_t prompt_states = 0;  // likewise
    int64_t left = 0;          // samples without an end
    std::vector<size_t> rows;  // running
    api::SampleOutput output;
    [[nodiscard]] const api::Sample& sample() const { return std::get<api::Sample>(command->op); }
  };

  void open(const std::shared_ptr<const api::Command>& command);
  void add_row(Request& request, int64_t index);
  void end_row(size_t row, bool stopped, std::vector<api::Result>& results);
  void take_prompt(Request& request, api::SampleResult& result);
  void drop(const api::RequestId& request);
  void drop_all(const std::string& reason, std::vector<api::Result>& results);

  Engine& engine_;
  SnapshotCache& snapshots_;
  const text::Tokenizer* tokenizer_;
  SamplingLoop loop_;
  std::unordered_map<api::RequestId, Request> requests_;
  std::unordered_map<size_t, Row> rows_;
  int64_t reserved_pages_ = 0;
  int64_t reserved_states_ = 0;
};

}  // namespace strata::engine
