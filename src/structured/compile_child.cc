// SPDX-License-Identifier: Apache-2.0
#include "structured/compile_child.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <new>
#include <string>

#include "base/error.h"
#include "structured/compile_frames.h"
#include "structured/compile_process.h"
#include "structured/grammar.h"

namespace strata::structured {
namespace {

constexpr int kPipe = 0;
// What is larger takes many times as much as JSON, and longer to write than to compile: the parent
// compiles it itself, which is known to end within the limits.
constexpr int64_t kMostSentBytes = int64_t{32} << 10;
constexpr double kAnyTime = std::numeric_limits<double>::infinity();

int64_t mapped_bytes() {
  int64_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * ::sysconf(_SC_PAGESIZE);
}

void set_soft_limit(decltype(RLIMIT_AS) resource, rlim_t value) {
  rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = std::min(value, limit.rlim_max);
  ::setrlimit(resource, &limit);
}

// What one compile may take besides what is there. The parent's clock ends it earlier; seconds of
// the processor are for a parent that is gone.
void limit_compile(double seconds, int64_t memory) {
  rusage used = {};
  ::getrusage(RUSAGE_SELF, &used);
  const auto whole = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
  set_soft_limit(RLIMIT_CPU, whole + 2 + static_cast<rlim_t>(std::ceil(seconds)));
  set_soft_limit(RLIMIT_AS, static_cast<rlim_t>(mapped_bytes() + memory));
}

GrammarSource source_of(const Frame& frame) {
  return {.kind = static_cast<GrammarKind>(frame.at(4).at(0)),
          .text = frame.at(5),
          .is_lenient = frame.at(6) == "1",
          .may_begin_with_breaks = frame.at(7) == "1"};
}

Frame compile(const Vocabulary& vocabulary, const Frame& frame) {
  try {
    const Grammar grammar = compile_grammar(vocabulary, source_of(frame), frame.at(8));
    Frame answer = {kCompiled, ""};
    if (grammar.num_bytes() <= kMostSentBytes) answer[1] = grammar.to_bytes();
    answer.insert(answer.end(), grammar.warnings().begin(), grammar.warnings().end());
    return answer;
  } catch (const Error& error) {
    return {kRefused, std::to_string(static_cast<int>(error.code)), error.what()};
  }
}

}  // namespace

int run_compile_child() {
  std::map<std::string, Vocabulary> vocabularies;
  Frame frame;
  while (receive_frame(kPipe, frame, kAnyTime) == FrameEnd::kWhole) {
    Frame answer;
    try {
      if (frame.at(0) == kVocabulary) {
        set_soft_limit(RLIMIT_AS, RLIM_INFINITY);
        vocabularies.emplace(frame.at(1), Vocabulary({frame.begin() + 2, frame.end()}));
        answer = {kCompiled};
      } else {
        limit_compile(std::stod(frame.at(2)), std::stoll(frame.at(3)));
        answer = compile(vocabularies.at(frame.at(1)), frame);
      }
    } catch (const std::bad_alloc&) {
      answer = {kNoMemory};
    }
    if (send_frame(kPipe, answer, kAnyTime) != FrameEnd::kWhole || answer[0] == kNoMemory) break;
  }
  return 0;
}

}  // namespace strata::structured
