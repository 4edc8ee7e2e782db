// SPDX-License-Identifier: Apache-2.0
// A timeline of the program in Chrome's trace format, for ui.perfetto.dev and chrome://tracing: a
// row a thread, and in it the spans of base/trace.h. docs/timeline.md shows how to read one.
//   TraceFile file(options.trace);  ...run...  file.finish();
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/trace.h"

namespace strata::report {

class TraceFile {
 public:
  // Starts the trace; the file must be possible to write. An empty path: nothing happens.
  explicit TraceFile(const std::string& path);
  // Ends the trace; without finish() there is no file.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  void finish();

 private:
  std::optional<AtomicFile> file_;
};

std::string trace_json(const std::vector<TracedThread>& threads);

}  // namespace strata::report
