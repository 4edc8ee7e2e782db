// SamplingLoop: continuous batching. Requests join at any time; each step reads a piece of every
// waiting prompt and decodes one token of every running row, all in shared passes over paged KV; a
// row leaves as soon as it is done and its pages go back. A row's tokens and logprobs depend on its
// own request alone, bit for bit: not on the other rows, the order of joining, the prompt chunks or
// the page size. Engine thread only.
//   SamplingLoop loop(engine); const size_t id = loop.add(request);
//   while (!loop.done()) for (const SampledToken& token : loop.step()) ...;  loop.take(id)
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "api/batch.h"
#include "engine/engine.h"
#include "model/head.h"

namespace strata::engine {

struct SampledToken {
  size_t id = 0;  // what add() returned
  int32_t token = 0;
  float logprob = 0.0f;
  bool last = false;  // the row is done
};

class SamplingLoop {
 public:
  explicit SamplingLoop(Engine& engine) : engine_(engine) {}
  ~SamplingLoop();
  SamplingLoop(const SamplingLoop&) = delete;
  SamplingLoop& operator=(const SamplingLoop&) = delete;

  // Checks the request (Error on a fault) and queues it.
  size_t add(const api::SampleRequest& request);
  [[nodiscard]] bool done() const { return active_.empty(); }
  // Runs one pass; the tokens it sampled, at most one a row, in order of id.
  std::span<const SampledToken> step();
  // Ends a row now, as a stop string does; its result keeps the tokens so far.
  void finish(size_t id);
  // The result of a finished row.
  api::SampleResult take(size_t id);

 private:
  struct Row {
    api::SampleRequest request;
    api::SampleResult result;
    model::LoraAdapter* adapter = nullptr;
    std::vector<void*> pages;
    int64_t position = 0;  // tokens already in the cache
    bool finished = false;
    [[nodiscard]] bool in_prompt() const {
      return position < static_cast<int64_t>(request.prompt.size());
    }
    [[nodiscard]] bool wants_prompt() const {
      return request.prompt_logprobs || request.topk_prompt_logprobs > 0;
    }
  };
  struct Slice {  // a row's part of the pass
    size_t id = 0;
    int64_t begin = 0, end = 0;  // rows of the flat batch
    bool samples = false;        // its last row yields a token
  };

  void plan_pass();
  void add_slice(size_t id, int64_t count);
  void read_logits(model::Pass& pass, TensorView hidden);
  void use_logits(size_t id, const Slice& slice, int64_t row, const float* logits,
                  const float* lse);
  void record_prompt(Row& row, int64_t position, const float* logits, const float* lse);
  void sample_token(size_t id, Row& row, const float* logits, const float* lse);
  void release(Row& row);

  Engine& engine_;
  std::deque<Row> rows_;        // by id; stable addresses
  std::vector<size_t> active_;  // ids not finished, ascending
  std::vector<size_t> decoding_;
  std::vector<Slice> slices_;
  std::vector<SampledToken> sampled_;
  std::vector<uint8_t> selected_;
  model::RowChunks chunks_;
  PassBuilder builder_;
};

}  // namespace strata::engine
