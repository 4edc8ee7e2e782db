// SPDX-License-Identifier: Apache-2.0
// DividedMemory: memory of which each of several ranks keeps a part, and has the rest while it
// needs it. It is made of units, which do not change once ranks are connected; a rank keeps one run
// of bytes of each, about as many as any other, and gets a unit's others from those that keep them.
//
// Who asks for what, and when: a rank asks for a unit when its own work comes to it or to the one
// before it, whatever the other ranks do just then. They need not come to the same units, nor as
// often. A thread of each rank gathers: it asks the owners for the pieces of a unit, for a few
// ahead of those that it waits for, and takes them where the unit is. Another one answers: it
// waits for questions alone, and reads what does not change meanwhile. So who waits for a piece
// waits for a thread that waits for nobody's work, and no order of ranks' work can stop them all.
// An owner has no more than those few pieces on their way to a rank, whatever its work does
// meanwhile. At the end a rank says to the others that it asks no more, and answers until all have
// said so; one whose work has thrown does not wait, and the others fail at their next receive.
// Engine thread only, but for counts of bytes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "backend/comm.h"
#include "backend/memory.h"
#include "backend/memory_share.h"
#include "base/mutex.h"

namespace strata {

// Bytes [first, end) of a unit of so many.
struct BytePart {
  int64_t first = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - first; }
};
BytePart part_of(int64_t unit_bytes, const MemoryShare& share);

// How many questions a part is asked for with, of so many bytes each.
int64_t num_questions(const BytePart& part);
constexpr int64_t kQuestionBytes = 16;
// The bytes of messages with pieces of parts of so many bytes at most, that an owner has on their
// way.
int64_t message_bytes(int64_t part_bytes, const MemoryShare& share);

// Pages of the machine, small ones, which go back one by one. Any thread.
Allocator& sparse_allocator();

class DividedMemory {
 public:
  // Each unit's ranges in their order, of sparse_allocator(). `of_work`: of the backend whose work
  // reads them, which is waited for before anything goes.
  DividedMemory(std::vector<std::vector<PageRange>> units, const MemoryShare& share,
                Allocator& of_work);
  // Where ranks are connected: collective, unless an exception is on its way.
  ~DividedMemory();
  DividedMemory(const DividedMemory&) = delete;
  DividedMemory& operator=(const DividedMemory&) = delete;

  [[nodiscard]] const MemoryShare& share() const { return share_; }
  // What other ranks keep of a unit goes, or of all of them, of which none is here: ranks are not
  // connected yet, or all have settled, none asks, and each writes what all units are to hold from
  // now on.
  void trim(size_t unit);
  void trim();
  // Waits for what was asked for, after which nothing moves here.
  void wait_until_idle();
  // Trims, then lets units come from the ranks that own them.
  // From here on units are only read, but where trim() says. Collective. Borrows the ranks' own
  // Comm; messages have tags from `first_tag` on, two of them.
  void connect_ranks(Comm& ranks, int64_t first_tag);
  [[nodiscard]] bool is_connected() const { return ranks_ != nullptr; }

  // In the order of calls. What is here already stays.
  void fetch(size_t unit);
  void let_go(size_t unit);
  // Until it was fetched. Throws what went wrong.
  void wait_for(size_t unit);

  // What this rank has sent: pieces, and questions. Any thread.
  [[nodiscard]] int64_t answered_bytes() const { return answered_; }
  [[nodiscard]] int64_t asked_bytes() const { return asked_; }

 private:
  enum class Place : uint8_t { kGone, kComing, kHere };
  struct Request {
    size_t unit = 0;
    bool fetches = true;
  };
  // A piece of the part that an owner keeps.
  struct Piece {
    int owner = 0;
    int64_t number = 0;
  };
  // Calls body with the runs of memory that bytes [first, end) of a unit are.
  template <typename Body>
  void for_each_run(size_t unit, const BytePart& bytes, Body body) const;
  [[nodiscard]] BytePart part(size_t unit, int rank) const;
  // Which bytes of a unit it is.
  [[nodiscard]] BytePart range_of_piece(size_t unit, const Piece& piece) const;
  void wait_for_readers();
  // Adds the request, unless its unit is in that place or on the way already.
  void enqueue_request(const Request& request);
  void drop(size_t unit);
  void ask_for_piece(size_t unit, const Piece& piece);
  // Asks all owners in turn, so that all links are in use.
  void refill_pieces(size_t unit);
  void fetch_pieces(size_t unit);
  // None: it stops.
  std::optional<Request> dequeue_request();
  void mark_arrived(size_t unit);
  void run_requests();
  void start_threads();
  void stop_gathering();
  // Tells the others' answering threads.
  void announce_end_of_questions();
  void stop_answering();
  void send_piece(int to, size_t unit, const Piece& piece);
  void answer_questions();
  void note_failure();

  const std::vector<std::vector<PageRange>> units_;
  std::vector<int64_t> unit_bytes_;
  const MemoryShare share_;
  Allocator& of_work_;
  Comm* ranks_ = nullptr;
  int64_t first_tag_ = 0;
  std::atomic<int64_t> answered_ = 0, asked_ = 0;
  std::vector<Piece> pieces_;  // the gathering thread's own

  Mutex mutex_;
  CondVar changed_;
  std::vector<Place> places_ GUARDED_BY(mutex_);
  std::vector<Request> requests_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false;  // of the gathering thread
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ GUARDED_BY(mutex_);
  std::jthread gathering_, answering_;  // last: they use all of the above
};

}  // namespace strata
