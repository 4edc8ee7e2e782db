// SPDX-License-Identifier: Apache-2.0
// Backend: where the math of one engine runs and its tensors live: its kind, an allocator, and
// scratch for kernels. Ops take it first. Engine thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backend/arena.h"
#include "base/check.h"
#include "base/function_ref.h"

namespace strata {

class FileAllocator;
class OffloadSpace;
class PageQueue;
struct Interruption;
namespace ops {
struct Rows;
}  // namespace ops

// What backends of a kind have in common: their functions for each op (ops/rows.h). A kind that
// counts computes nothing: its ops take their memory from a scratch that has none, and return, so
// that what a pass will take is what the same code took there.
struct BackendKind {
  std::string_view name;
  const ops::Rows* rows = nullptr;
  bool counts = false;
};

class Backend {
  class Call {
   public:
    explicit Call(Backend& backend) : backend_(backend) {}
    ~Call() {
      if (backend_.breaks_ != nullptr) backend_.let_in();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    const ops::Rows* operator->() const { return backend_.kind_.rows; }

   private:
    Backend& backend_;
  };

 public:
  virtual ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] const BackendKind& kind() const { return kind_; }
  // For ops alone.
  [[nodiscard]] const ops::Rows& rows() const { return *kind_.rows; }
  // rows() for the call of an op's function, behind which other work is let in where it is due.
  [[nodiscard]] Call call() { return Call(*this); }
  [[nodiscard]] bool is_counting() const { return kind_.counts; }
  // Runs what reads values or acts on them, of which there are none where nothing is computed.
  // Whether it ran.
  template <typename Body>
  bool unless_counting(Body&& body) const {
    if (kind_.counts) return false;
    body();
    return true;
  }
  // The contrary: what only a plan does.
  template <typename Body>
  void if_counting(Body&& body) const {
    if (kind_.counts) body();
  }
  // Allocates everything that ops read and write: weights, adapters, caches, scratch.
  [[nodiscard]] Allocator& allocator() const { return allocator_; }
  // Temporary memory of kernels and of a step; use it through Scratch::Mark.
  [[nodiscard]] Scratch& scratch() { return scratch_; }

  // What bits depend on: equalities hold between backends of one kind whose arithmetic has the same
  // name; between others there are tolerances.
  [[nodiscard]] virtual std::string_view arithmetic() const = 0;
  // Pieces of work that run at once. No bit depends on it.
  [[nodiscard]] virtual int parallelism() const { return 1; }
  // One with scratch of its own whose work takes turns with this one's, in which it breaks in.
  [[nodiscard]] virtual std::unique_ptr<Backend> sharing() = 0;
  // One that counts what this one would take.
  [[nodiscard]] virtual std::unique_ptr<Backend> counter() const = 0;
  // Work of the host's own in items, each on one of its threads.
  virtual void run_on_host(int64_t count, FunctionRef<void(int64_t item)> body);

  // Where a pass keeps what it offloads: a counting backend has such a scratch, others from
  // offload_to() on.
  [[nodiscard]] bool has_files() const { return kind_.counts || offload_ != nullptr; }
  [[nodiscard]] Scratch& file_scratch();
  // Null of a counting one, and of one without files.
  [[nodiscard]] OffloadSpace* offload() { return offload_.get(); }
  // Error{kInvalidArgument} where the folder cannot hold memory.
  void offload_to(const std::string& dir);

  // A queue for memory in files, in the order of this backend's work; `name` is its row's in a
  // timeline.
  [[nodiscard]] virtual std::unique_ptr<PageQueue> page_queue(const std::string& name,
                                                              FileAllocator& files) const;

  // Scratch that kernels have besides scratch(): some of one size. Of a counting backend, what they
  // would take.
  [[nodiscard]] virtual int num_workers() const { return 0; }
  [[nodiscard]] virtual int64_t worker_high_water() const { return 0; }
  // Space for what a pass was counted to take, of scratch and of each worker's.
  void book(int64_t bytes, int64_t worker_bytes) {
    scratch_.book(bytes);
    if (worker_bytes > 0) book_workers(worker_bytes);
  }

  // A counting backend counts the work that it is asked for, and begins anew.
  void count_flops(double flops) { counted_flops_ += flops; }
  [[nodiscard]] double counted_flops() const { return counted_flops_; }
  void reset_count();

  // While it lives, the backend's work may be broken into (base/threads.h): behind every op, which
  // is also at the borders of layers, and where a kind asks besides that.
  class Breaks {
   public:
    Breaks(Backend& backend, const Interruption& interruption) : backend_(backend) {
      CHECK(backend_.breaks_ == nullptr);
      backend_.breaks_ = &interruption;
      backend_.set_breaks(&interruption);
    }
    ~Breaks() {
      backend_.set_breaks(nullptr);
      backend_.breaks_ = nullptr;
    }
    Breaks(const Breaks&) = delete;
    Breaks& operator=(const Breaks&) = delete;

   private:
    Backend& backend_;
  };

 protected:
  Backend(const BackendKind& kind, Allocator& allocator);

 private:
  virtual void book_workers(int64_t /*bytes*/) {}
  // Null: none from now on.
  virtual void set_breaks(const Interruption* /*interruption*/) {}
  // Runs what breaks in, where that is due and does not run already.
  virtual void let_in();

  const BackendKind& kind_;
  Allocator& allocator_;
  Scratch scratch_;
  Scratch counted_files_ = Scratch::counting(Scratch::Counted::kFiles);
  double counted_flops_ = 0.0;
  std::unique_ptr<OffloadSpace> offload_;
  const Interruption* breaks_ = nullptr;
};

}  // namespace strata
