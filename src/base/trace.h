// SPDX-License-Identifier: Apache-2.0
// Trace: which thread did what, and when. Spans nest by time; report/trace_file.h writes them as a
// timeline. Off until start_trace(): a span then costs one load. One for the program, like the log;
// any thread. Each thread writes to a ring of its own, which keeps its last kSpansOfAThread.
//   const TraceSpan span("forward", "tokens", num_tokens);
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

constexpr size_t kSpansOfAThread = size_t{1} << 17;

struct TracedSpan {
  std::string_view name;
  std::string_view key;  // of the number; empty where there is none
  int64_t number = 0;
  int64_t start_ns = 0, end_ns = 0;  // since start_trace()
};

struct TracedThread {
  std::string name;
  std::vector<TracedSpan> spans = {};  // in the order of their ends
  int64_t num_lost = 0;                // older ones, which the ring had no space for
};

namespace internal {
inline std::atomic<bool> trace_on{false};
int64_t trace_clock();
void record_span(const TracedSpan& span);  // times of trace_clock()
}  // namespace internal

// Spans that begin from now on are kept.
void start_trace();
// Ends it, and returns what was kept, threads in the order of their first spans. Spans that have
// not ended are not in it.
std::vector<TracedThread> stop_trace();

// The calling thread's name in a trace; "thread N" without.
void name_thread(std::string name);

// From its construction to its end. `name` and `key` must live on (literals, names of blocks). With
// an empty name it is nothing: of a pass that only counts, say.
class TraceSpan {
 public:
  explicit TraceSpan(std::string_view name, std::string_view key = {}, int64_t number = 0) {
    if (name.empty() || !internal::trace_on.load(std::memory_order_relaxed)) return;
    span_ = {.name = name, .key = key, .number = number, .start_ns = internal::trace_clock()};
  }
  ~TraceSpan() {
    if (!span_.name.empty()) internal::record_span(span_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TracedSpan span_;
};

}  // namespace strata
