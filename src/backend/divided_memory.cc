// SPDX-License-Identifier: Apache-2.0
#include "backend/divided_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/trace.h"

namespace strata {
namespace {

constexpr int64_t kAskTag = 0, kPieceTag = 1;  // behind the first one
// A piece is asked for at once; with those ahead it is on its way from an owner.
constexpr int64_t kPieceBytes = 4 << 20;
constexpr size_t kAhead = 2;
constexpr int64_t kAligned = 64;  // where parts begin
constexpr uintptr_t kPage = 4096;

// Units with numbers that are none.
constexpr int32_t kAsksNoMore = -1, kStops = -2;

struct Question {
  int32_t rank = 0;
  int32_t unit = 0;
  int64_t piece = 0;
};
static_assert(sizeof(Question) == kQuestionBytes);

void send_question(Comm& ranks, int to, int64_t first_tag, const Question& question) {
  ranks.send_bytes(to, first_tag + kAskTag, &question, sizeof(question));
}

class SparseAllocator : public Allocator {
 public:
  void* allocate(int64_t bytes) override {
    void* map = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
      throw Error(ErrorCode::kResourceExhausted,
                  fmt::format("memory: {} bytes could not be had", bytes));
    }
    // A large page would bring its neighbours back with it.
    ::madvise(map, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
    return map;
  }
  void release(void* data, int64_t bytes) override { ::munmap(data, static_cast<size_t>(bytes)); }
};

// Zero from now on: whole pages go back to the system.
void decommit(char* data, int64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t end = begin + static_cast<uintptr_t>(bytes);
  const uintptr_t first = std::min(end, (begin + kPage - 1) / kPage * kPage);
  const uintptr_t last = std::max(first, end / kPage * kPage);
  std::memset(data, 0, first - begin);
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

}  // namespace

Allocator& sparse_allocator() {
  static SparseAllocator allocator;
  return allocator;
}

BytePart part_of(int64_t unit_bytes, const MemoryShare& share) {
  const auto border = [&](int64_t rank) {
    return rank == share.num_ranks ? unit_bytes
                                   : unit_bytes * rank / share.num_ranks / kAligned * kAligned;
  };
  return {border(share.rank), border(share.rank + 1)};
}

int64_t num_questions(const BytePart& part) {
  return (part.size() + kPieceBytes - 1) / kPieceBytes;
}

int64_t message_bytes(int64_t part_bytes, const MemoryShare& share) {
  return (share.num_ranks - 1) * std::min(part_bytes, static_cast<int64_t>(kAhead) * kPieceBytes);
}

DividedMemory::DividedMemory(std::vector<std::vector<PageRange>> units, const MemoryShare& share,
                             Allocator& of_work)
    : units_(std::move(units)), share_(share), of_work_(of_work) {
  CHECK(share.is_divided() && share.rank < share.num_ranks, share.rank, share.num_ranks);
  for (const std::vector<PageRange>& ranges : units_) {
    unit_bytes_.push_back(
        std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                        [](int64_t sum, const PageRange& range) { return sum + range.bytes; }));
  }
}

void DividedMemory::stop_gathering() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  gathering_.join();
}

void DividedMemory::announce_end_of_questions() {
  const Question last = {.rank = share_.rank, .unit = kAsksNoMore};
  for (int rank = 0; rank < share_.num_ranks; ++rank) {
    if (rank != share_.rank) send_question(*ranks_, rank, first_tag_, last);
  }
}

void DividedMemory::stop_answering() {
  const Question last = {.rank = share_.rank, .unit = kStops};
  send_question(*ranks_, share_.rank, first_tag_, last);
}

DividedMemory::~DividedMemory() {
  if (ranks_ == nullptr) return;
  stop_gathering();
  announce_end_of_questions();
  // Otherwise the thread that answers ends with the last of the others.
  if (std::uncaught_exceptions() != 0) stop_answering();
}

BytePart DividedMemory::part(size_t unit, int rank) const {
  return part_of(unit_bytes_[unit], {rank, share_.num_ranks});
}

BytePart DividedMemory::range_of_piece(size_t unit, const Piece& piece) const {
  const BytePart all = part(unit, piece.owner);
  const int64_t first = all.first + piece.number * kPieceBytes;
  CHECK(piece.number >= 0 && first < all.end, unit, piece.owner, piece.number);
  return {first, std::min(all.end, first + kPieceBytes)};
}

template <typename Body>
void DividedMemory::for_each_run(size_t unit, const BytePart& bytes, Body body) const {
  int64_t before = 0;
  for (const PageRange& range : units_[unit]) {
    const int64_t first = std::max<int64_t>(0, bytes.first - before);
    const int64_t end = std::min(range.bytes, bytes.end - before);
    if (end > first) body(static_cast<char*>(range.data) + first, end - first);
    before += range.bytes;
  }
}

void DividedMemory::drop(size_t unit) {
  const BytePart own = part(unit, share_.rank);
  for (const BytePart& others : {BytePart{0, own.first}, BytePart{own.end, unit_bytes_[unit]}})
    for_each_run(unit, others, decommit);
}

void DividedMemory::wait_until_idle() {
  const MutexLock lock(mutex_);
  while ((busy_ || !requests_.empty()) && !failure_) changed_.wait(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  for (const Place place : places_) CHECK(place != Place::kComing);
}

void DividedMemory::trim(size_t unit) {
  const HostAccess access(of_work_);
  drop(unit);
}

void DividedMemory::trim() {
  const HostAccess access(of_work_);
  for (size_t unit = 0; unit < units_.size(); ++unit) drop(unit);
}

void DividedMemory::start_threads() {
  gathering_ = std::jthread([this] {
    name_thread("gather weights");
    run_requests();
  });
  answering_ = std::jthread([this] {
    name_thread("weights for others");
    answer_questions();
  });
}

void DividedMemory::connect_ranks(Comm& ranks, int64_t first_tag) {
  CHECK(ranks.rank() == share_.rank && ranks.size() == share_.num_ranks, ranks.rank(), ranks.size(),
        share_.rank, share_.num_ranks);
  trim();
  ranks_ = &ranks;
  first_tag_ = first_tag;
  {
    const MutexLock lock(mutex_);
    places_.assign(units_.size(), Place::kGone);
  }
  start_threads();
}

void DividedMemory::enqueue_request(const Request& request) {
  const MutexLock lock(mutex_);
  Place& place = places_[request.unit];
  if ((place == Place::kGone) != request.fetches) return;
  place = request.fetches ? Place::kComing : Place::kGone;
  requests_.push_back(request);
  changed_.notify_all();
}

void DividedMemory::fetch(size_t unit) {
  CHECK(is_connected(), unit);
  enqueue_request({.unit = unit, .fetches = true});
}

// The host's access waits for the work that was asked for.
void DividedMemory::wait_for_readers() { const HostAccess access(of_work_); }

void DividedMemory::let_go(size_t unit) {
  CHECK(is_connected(), unit);
  wait_for_readers();
  enqueue_request({.unit = unit, .fetches = false});
}

void DividedMemory::wait_for(size_t unit) {
  const MutexLock lock(mutex_);
  CHECK(places_[unit] != Place::kGone, unit);
  while (places_[unit] != Place::kHere && !failure_) changed_.wait(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void DividedMemory::ask_for_piece(size_t unit, const Piece& piece) {
  const Question question = {
      .rank = share_.rank, .unit = static_cast<int32_t>(unit), .piece = piece.number};
  asked_ += kQuestionBytes;
  send_question(*ranks_, piece.owner, first_tag_, question);
}

void DividedMemory::refill_pieces(size_t unit) {
  pieces_.clear();
  bool any = true;
  for (int64_t number = 0; any; ++number) {
    any = false;
    for (int owner = 0; owner < share_.num_ranks; ++owner) {
      if (owner == share_.rank || number >= num_questions(part(unit, owner))) continue;
      pieces_.push_back({owner, number});
      any = true;
    }
  }
}

void DividedMemory::fetch_pieces(size_t unit) {
  const TraceSpan span("gather weights", "unit", static_cast<int64_t>(unit));
  refill_pieces(unit);
  const size_t ahead = kAhead * static_cast<size_t>(share_.num_ranks - 1);
  size_t asked = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    for (; asked < std::min(pieces_.size(), i + ahead); ++asked)
      ask_for_piece(unit, pieces_[asked]);
    for_each_run(unit, range_of_piece(unit, pieces_[i]), [&](char* data, int64_t bytes) {
      ranks_->receive_bytes(pieces_[i].owner, first_tag_ + kPieceTag, data, bytes);
    });
  }
}

void DividedMemory::note_failure() {
  const MutexLock lock(mutex_);
  if (!failure_) failure_ = std::current_exception();
  changed_.notify_all();
}

std::optional<DividedMemory::Request> DividedMemory::dequeue_request() {
  const MutexLock lock(mutex_);
  busy_ = false;
  changed_.notify_all();
  while (requests_.empty() && !stopping_) changed_.wait(mutex_);
  if (requests_.empty()) return std::nullopt;
  busy_ = true;
  const Request request = requests_.front();
  requests_.erase(requests_.begin());
  return request;
}

// It may have been let go meanwhile, and maybe asked for again: then its turn comes.
void DividedMemory::mark_arrived(size_t unit) {
  const MutexLock lock(mutex_);
  const bool comes_again = std::any_of(requests_.begin(), requests_.end(),
                                       [&](const Request& r) { return r.unit == unit; });
  if (!comes_again) places_[unit] = Place::kHere;
}

void DividedMemory::run_requests() {
  while (const std::optional<Request> request = dequeue_request()) {
    if (!request->fetches) {
      drop(request->unit);
      continue;
    }
    try {
      fetch_pieces(request->unit);
    } catch (...) {
      return note_failure();
    }
    mark_arrived(request->unit);
  }
}

void DividedMemory::send_piece(int to, size_t unit, const Piece& piece) {
  for_each_run(unit, range_of_piece(unit, piece), [&](char* data, int64_t bytes) {
    answered_ += bytes;
    ranks_->send_bytes(to, first_tag_ + kPieceTag, data, bytes);
  });
}

void DividedMemory::answer_questions() {
  try {
    for (int asking = share_.num_ranks - 1; asking > 0;) {
      Question question;
      ranks_->receive_bytes(Comm::kAnyRank, first_tag_ + kAskTag, &question, sizeof(question));
      if (question.unit == kStops) return;
      if (question.unit == kAsksNoMore) {
        --asking;
        continue;
      }
      const auto unit = static_cast<size_t>(question.unit);
      CHECK(unit < units_.size(), question.rank, question.unit);
      send_piece(question.rank, unit, {share_.rank, question.piece});
    }
  } catch (...) {  // another rank has failed, or there is no memory to send from
    note_failure();
  }
}

}  // namespace strata
