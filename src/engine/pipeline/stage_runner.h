// SPDX-License-Identifier: Apache-2.0
// StageRunner: runs the actions of one stage on the micro-batches of a batch, round by round. Each
// micro-batch between its forward and its backward is in flight, and holds the activations that it
// keeps; what passes only work with is the scratch of the stage's engine, and where none is in
// flight while another runs, all of it. What has ended is reused, so that a warm step allocates
// nothing. Engine thread only.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "api/batch.h"
#include "api/tensor_sink.h"
#include "backend/comm.h"
#include "engine/engine.h"
#include "engine/pass.h"
#include "engine/pipeline/gradient_chain.h"
#include "engine/pipeline/plan.h"
#include "engine/pipeline/round.h"

namespace strata::engine {

// What takes a stage's gradients from micro-batch to micro-batch where these are dealt out: those
// of experts of which ranks have several copies, and of all else. Null: they stay.
struct StageChains {
  GradientChain* all = nullptr;
  GradientChain* experts = nullptr;
};

class StageRunner {
 public:
  // Micro-batches of rounds before that have a backward, and groups of such that run at once.
  struct Backwards {
    size_t passes = 0, groups = 0;
  };

  // Borrows all of them.
  StageRunner(Comm& comm, const PipelinePlan& plan, int stage, Engine& engine,
              const StageChains& chains);
  ~StageRunner();
  StageRunner(const StageRunner&) = delete;
  StageRunner& operator=(const StageRunner&) = delete;

  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] int stage() const { return stage_; }

  // Before a batch's first action: what can be refused is, and nothing has changed then. Borrows
  // all of it until end_batch(). The large results of a stage that is the whole model go to `sink`.
  void begin_batch(const api::Batch& batch, api::BatchResult& result, api::TensorSink* sink);
  void begin(const Round& round, const Backwards& before) {
    round_ = &round;
    before_ = before;
  }
  // Runs an action of this stage. Its receive is that of the computation, which waits for what it
  // needs.
  void run(const schedule::Action& action);
  // After the last action, or where one has thrown: nothing is in flight.
  void end_batch();
  // Layers that passes have run since it was made; a backward counts twice.
  [[nodiscard]] int64_t layers_done() const { return layers_done_; }
  // The stage's part of the large results of the batch.
  [[nodiscard]] api::TensorSink& sink() { return own_sink_; }
  // Micro-batches that were in flight at once, at most.
  [[nodiscard]] int64_t peak_live() const { return std::ssize(flights_); }
  // The most that one of them has held, in memory and in files, and by tag; and that a pass has
  // worked with.
  [[nodiscard]] int64_t held_bytes() const { return held_bytes_; }
  [[nodiscard]] int64_t offloaded_bytes() const { return offloaded_bytes_; }
  [[nodiscard]] std::span<const Scratch::Use> held_uses() const { return held_uses_; }
  [[nodiscard]] int64_t pass_bytes() const { return pass_bytes_; }
  // Bytes of states and gradients on their way to other stages.
  [[nodiscard]] int64_t border_bytes() const;
  // Micro-batches between their backward and their weight gradients, at most, and the most that one
  // of them has held.
  [[nodiscard]] int64_t peak_deferred() const { return std::ssize(waiting_); }
  [[nodiscard]] int64_t deferred_bytes() const { return deferred_bytes_; }

 private:
  struct Flight {
    explicit Flight(Engine& engine) : held(engine.backend().allocator()) {}
    Scratch held;
    std::unique_ptr<Scratch> files = {};  // what it holds in files; null: it never has
    MicroBatch micro_batch;
    model::DealtRows dealt = {};  // where expert ranks deal passes out: of all that run with it
    GradientChain::Link link, expert_link;
    std::optional<Scratch::Mark> mark, files_mark;
    std::optional<StagePass> pass;
    int64_t deferred_bytes = 0;  // that its backward was counted to defer
    int microbatch = -1;         // -1: free
  };
  // Weight gradients that wait for their action.
  struct Waiting {
    explicit Waiting(Engine& engine) : memory(engine.backend().allocator()), products(memory) {}
    Scratch memory;
    std::optional<Scratch::Mark> mark;
    model::DeferredProducts products;
    int microbatch = -1;  // -1: free
  };
  enum class Border : uint8_t { kForward, kBackward };
  // What crosses a border: a state, or back a gradient and the losses of the indexers behind it.
  struct Crossing {
    Tensor memory;
    TensorView tensor;
    std::vector<float> indexer_losses;
    int microbatch = -1;  // -1: free
  };

  [[nodiscard]] bool is_first() const { return stage_ == 0; }
  [[nodiscard]] bool is_last() const { return stage_ + 1 == plan_.num_stages(); }
  [[nodiscard]] bool is_here(int stage) const;  // on this rank
  // Whether ranks that deal out passes are expert ranks, which send each other's experts rows.
  [[nodiscard]] bool deals_rows(int num_dealt) const { return plan_.expert > 1 && num_dealt > 1; }
  [[nodiscard]] int64_t tag(Border border, int to_stage, int microbatch) const;
  std::vector<Crossing>& crossings(Border border) {
    return crossings_[static_cast<size_t>(border)];
  }
  // Memory for what is to cross this border, until it is sent or let go.
  TensorView claim_tensor(Border border, int microbatch, const Shape& shape);
  Crossing& find_crossing(Border border, int microbatch);
  void send(Border border, int microbatch);
  void receive(Border border, int from_stage, int microbatch, TensorView tensor,
               std::span<float> indexer_losses = {});
  Flight& claim_flight(int microbatch);
  Flight& find_flight(int microbatch);
  void book_long_sequences();
  const PassPlan& count_memory(Flight& flight, const PassWork& work);
  void choose_recompute(Flight& flight, PassWork& work, size_t first);
  [[nodiscard]] bool all_alike_say(bool own) const;
  void book_files(Flight& flight);
  // While one lives, what a pass keeps stays with its flight.
  struct Holds {
    Holds(Backend& backend, Flight& flight);
    Scratch::Hold memory;
    std::optional<Scratch::Hold> files;
  };
  void record_peak_held(const Flight& flight);
  void retire_flight(Flight& flight);
  void free_flight(Flight& flight);
  PassWork collate(Flight& flight, int microbatch);
  PassWork prepare_pass_work(Flight& flight, int microbatch);
  void link_gradients(Flight& flight, int microbatch, PassWork& work);
  void book_counted_memory(Flight& flight);
  void forward(int microbatch);
  void backward(const schedule::Action& action);
  void hand_off_gradient(int microbatch);
  Waiting& find_waiting(int microbatch);
  void run_weight_gradients(int microbatch);
  model::DeferredProducts& claim_deferred_products(const Flight& flight);

  Comm& comm_;
  const PipelinePlan& plan_;
  const int stage_;
  Engine& engine_;
  std::vector<std::unique_ptr<Flight>> flights_;
  std::vector<std::unique_ptr<Waiting>> waiting_;
  std::array<std::vector<Crossing>, 2> crossings_;  // by border
  const api::Batch* batch_ = nullptr;
  int64_t layers_done_ = 0;
  const StageChains chains_;
  const Round* round_ = nullptr;
  Backwards before_;
  api::BatchResult* result_ = nullptr;
  api::TensorSink own_sink_;
  api::TensorSink* sink_ = nullptr;
  int64_t pass_bytes_ = 0;
  int64_t held_bytes_ = 0, offloaded_bytes_ = 0;
  int64_t deferred_bytes_ = 0;
  const bool defers_, has_flights_;
  std::vector<Scratch::Use> held_uses_;
};

}  // namespace strata::engine
