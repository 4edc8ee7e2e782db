// SPDX-License-Identifier: Apache-2.0
// CompileProcess: grammars compiled in a child process, so that one that takes too long or too much
// can be stopped: the child is killed then, and the next compile starts another. The child is this
// program itself, under a word of its own (structured/compile_child.h); it has none of the open
// files, sockets and variables of this one. Any thread; one compile at a time.
//   CompileProcess process({});  Grammar g = process.compile(vocabulary, source,
//   "response_format");
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "structured/compile_frames.h"
#include "structured/grammar.h"

namespace strata::structured {

// First words of frames. To the child: a vocabulary's name and its texts; or a compile: its name,
// seconds, bytes, kind, text, whether it is lenient, whether breaks may come first, where. From it:
// what was compiled and its warnings, or "" where the parent compiles it itself, which is known to
// end; an ErrorCode and a message; or nothing.
inline constexpr const char* kVocabulary = "vocabulary";
inline constexpr const char* kCompile = "compile";
inline constexpr const char* kCompiled = "compiled";
inline constexpr const char* kRefused = "refused";
inline constexpr const char* kNoMemory = "no memory";

struct CompileLimits {
  double seconds = 2;
  int64_t memory = int64_t{256} << 20;     // bytes besides what the child has of vocabularies
  std::string program = "/proc/self/exe";  // that runs run_compile_child() under its word
};

// A compile that was stopped, or that ended its child.
struct CompileStopped : Error {
  enum class Why : uint8_t { kSeconds, kMemory, kCrash };
  CompileStopped(Why reason, const std::string& message)
      : Error(ErrorCode::kInvalidArgument, message), why(reason) {}
  Why why;
};

class CompileProcess {
 public:
  explicit CompileProcess(CompileLimits limits) : limits_(std::move(limits)) {}
  ~CompileProcess();
  CompileProcess(const CompileProcess&) = delete;
  CompileProcess& operator=(const CompileProcess&) = delete;

  // Does what compile_grammar() does, and throws CompileStopped and, where no child starts,
  // Error{kIo} besides.
  Grammar compile(const Vocabulary& vocabulary, const GrammarSource& source,
                  const std::string& where);
  // The child's number; 0: there is none now.
  [[nodiscard]] int child() const;

 private:
  void start_child() REQUIRES(mutex_);
  // Kills the child where it still runs; why it ended.
  CompileStopped::Why end_child(FrameEnd end) REQUIRES(mutex_);
  std::string send_vocabulary_once(const Vocabulary& vocabulary) REQUIRES(mutex_);
  Frame ask(const Frame& frame, double seconds, const std::string& where) REQUIRES(mutex_);
  [[noreturn]] void throw_stopped(CompileStopped::Why why, const std::string& where) const;

  const CompileLimits limits_;
  mutable Mutex mutex_;
  int child_ GUARDED_BY(mutex_) = 0;
  int pipe_ GUARDED_BY(mutex_) = -1;
  struct Known {
    Vocabulary vocabulary;  // keeps the address of its texts its own
    std::string name;
  };
  std::map<const std::vector<std::string>*, Known> known_ GUARDED_BY(mutex_);
  std::set<std::string> sent_ GUARDED_BY(mutex_);  // the vocabularies that the child has
};

}  // namespace strata::structured
