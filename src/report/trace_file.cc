// SPDX-License-Identifier: Apache-2.0
#include "report/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <tuple>

namespace strata::report {
namespace {

std::string quoted(std::string_view text) {
  return boost::json::serialize(boost::json::string(text));
}

// Microseconds, which the format counts in.
std::string micros(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

void append_thread_metadata(std::string& out, size_t tid, const TracedThread& thread) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"name":"thread_name","ph":"M","pid":1,"tid":{},"args":{{"name":{}}}}},)"
                 R"({{"name":"thread_sort_index","ph":"M","pid":1,"tid":{},)"
                 R"("args":{{"sort_index":{}}}}},)",
                 tid, quoted(thread.name), tid, tid);
}

void append_span(std::string& out, size_t tid, const TracedSpan& span) {
  const std::string args =
      span.key.empty() ? "" : fmt::format(R"(,"args":{{{}:{}}})", quoted(span.key), span.number);
  fmt::format_to(
      std::back_inserter(out), R"({{"name":{},"ph":"X","pid":1,"tid":{},"ts":{},"dur":{}{}}},)",
      quoted(span.name), tid, micros(span.start_ns), micros(span.end_ns - span.start_ns), args);
}

// Worker 2 before worker 10.
void sort_with_workers_last(std::vector<TracedThread>& threads) {
  std::ranges::sort(threads, {}, [](const TracedThread& thread) {
    return std::tuple(thread.name.starts_with("worker "), thread.name.size(), thread.name);
  });
}

// The outer before the inner.
std::vector<TracedSpan> sorted_by_begin(std::vector<TracedSpan> spans) {
  std::ranges::sort(spans, {},
                    [](const TracedSpan& span) { return std::tuple(span.start_ns, -span.end_ns); });
  return spans;
}

}  // namespace

TraceFile::TraceFile(const std::string& path) {
  if (path.empty()) return;
  file_.emplace(path);
  start_trace();
}

TraceFile::~TraceFile() {
  if (file_) stop_trace();
}

void TraceFile::finish() {
  if (!file_) return;
  std::vector<TracedThread> threads = stop_trace();
  sort_with_workers_last(threads);
  file_->append(trace_json(threads));
  file_->commit();
  file_.reset();
}

std::string trace_json(const std::vector<TracedThread>& threads) {
  std::string out = R"({"displayTimeUnit":"ms","traceEvents":[)";
  int64_t num_lost = 0;
  for (size_t tid = 0; tid < threads.size(); ++tid) {
    append_thread_metadata(out, tid, threads[tid]);
    for (const TracedSpan& span : sorted_by_begin(threads[tid].spans)) append_span(out, tid, span);
    num_lost += threads[tid].num_lost;
  }
  if (out.back() == ',') out.pop_back();
  return out + fmt::format(R"(],"otherData":{{"spans_lost":{}}}}})", num_lost) + "\n";
}

}  // namespace strata::report
