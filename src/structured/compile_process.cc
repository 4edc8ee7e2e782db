// SPDX-License-Identifier: Apache-2.0
#include "structured/compile_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "base/spawn.h"
#include "structured/compile_child.h"

namespace strata::structured {
namespace {

constexpr double kStartSeconds = 60;  // for a child to start and to read a vocabulary

}  // namespace

CompileProcess::~CompileProcess() {
  const MutexLock lock(mutex_);
  if (child_ != 0) end_child(FrameEnd::kLate);
}

int CompileProcess::child() const {
  const MutexLock lock(mutex_);
  return child_;
}

void CompileProcess::start_child() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorCode::kIo,
                fmt::format("no socket for compiling a grammar: {}", std::strerror(errno)));
  int child = 0;
  const int fault = spawn_in_group(limits_.program, {"strata", kCompileChildWord},
                                   {.in = ends[1], .alone = true}, child);
  ::close(ends[1]);
  if (fault != 0) {
    ::close(ends[0]);
    throw Error(ErrorCode::kIo, fmt::format("{}: no process for compiling a grammar: {}",
                                            limits_.program, std::strerror(fault)));
  }
  child_ = child;
  pipe_ = ends[0];
  sent_.clear();
}

CompileStopped::Why CompileProcess::end_child(FrameEnd end) {
  ::kill(child_, SIGKILL);
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  ::close(pipe_);
  child_ = 0;
  pipe_ = -1;
  if (end == FrameEnd::kLate || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU))
    return CompileStopped::Why::kSeconds;
  return CompileStopped::Why::kCrash;
}

void CompileProcess::throw_stopped(CompileStopped::Why why, const std::string& where) const {
  using enum CompileStopped::Why;
  const std::string fault =
      why == kSeconds
          ? fmt::format("compiling it took longer than {:g} s (--schema-seconds)", limits_.seconds)
      : why == kMemory
          ? fmt::format("compiling it took more than {} MiB of memory", limits_.memory >> 20)
          : "compiling it ended its process, as what nests too deep does";
  throw CompileStopped(why, fmt::format("{}: {}; ask for something simpler", where, fault));
}

Frame CompileProcess::ask(const Frame& frame, double seconds, const std::string& where) {
  const double deadline = now_seconds() + seconds;
  Frame answer;
  FrameEnd end = send_frame(pipe_, frame, deadline);
  if (end == FrameEnd::kWhole) end = receive_frame(pipe_, answer, deadline);
  if (end != FrameEnd::kWhole) throw_stopped(end_child(end), where);
  if (answer.at(0) == kNoMemory) {
    end_child(end);
    throw_stopped(CompileStopped::Why::kMemory, where);
  }
  return answer;
}

std::string CompileProcess::send_vocabulary_once(const Vocabulary& vocabulary) {
  const std::vector<std::string>& texts = vocabulary.texts();
  const std::string name =
      known_.try_emplace(&texts, Known{vocabulary, std::to_string(known_.size())})
          .first->second.name;
  if (sent_.contains(name)) return name;
  Frame frame = {kVocabulary, name};
  frame.insert(frame.end(), texts.begin(), texts.end());
  ask(frame, kStartSeconds, "the model's vocabulary");
  sent_.insert(name);
  return name;
}

Grammar CompileProcess::compile(const Vocabulary& vocabulary, const GrammarSource& source,
                                const std::string& where) {
  Frame answer;
  {
    const MutexLock lock(mutex_);
    if (child_ == 0) start_child();
    const std::string name = send_vocabulary_once(vocabulary);
    answer =
        ask({kCompile, name, fmt::format("{}", limits_.seconds), std::to_string(limits_.memory),
             std::string(1, static_cast<char>(source.kind)), source.text,
             source.is_lenient ? "1" : "0", source.may_begin_with_breaks ? "1" : "0", where},
            limits_.seconds, where);
  }
  if (answer.at(0) == kRefused)
    throw Error(static_cast<ErrorCode>(std::stoi(answer.at(1))), answer.at(2));
  if (answer.at(1).empty()) return compile_grammar(vocabulary, source, where);
  return Grammar::from_bytes(vocabulary, source, answer.at(1), {answer.begin() + 2, answer.end()});
}

}  // namespace strata::structured
