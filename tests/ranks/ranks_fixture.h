// SPDX-License-Identifier: Apache-2.0
// Commands under mpirun, and what came of them.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/base/sanitizer.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {

// How a program that mpirun started has ended, and what all its ranks printed: `out` on standard
// output, `text` all of it.
struct Ended {
  int code = -1;
  std::string text, out = {};
};

inline std::string quoted(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += "'" + word + "' ";
  return line;
}

inline Ended run_shell(const std::string& command) {
  Ended ended;
  const std::string errors = fmt::format("{}/strata_ranks_{}", testing::TempDir(), ::getpid());
  std::FILE* out = ::popen(fmt::format("{} 2>'{}'", command, errors).c_str(), "r");
  for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) ended.out += static_cast<char>(c);
  ended.code = WEXITSTATUS(::pclose(out));
  ended.text = ended.out + content(errors);
  fs::remove(errors);
  return ended;
}

// The line that it printed with --json, which begins so.
inline boost::json::object json_of(const Ended& ended, const std::string& begin) {
  const size_t first = ended.out.find(begin);
  EXPECT_NE(first, std::string::npos) << ended.text;
  if (first == std::string::npos) return {};
  return boost::json::parse(ended.out.substr(first, ended.out.find('\n', first) - first))
      .as_object();
}

constexpr const char* kMpirun = "mpirun --oversubscribe --allow-run-as-root --bind-to none ";

class RanksTest : public TrainTest {
 protected:
  void SetUp() override {
#ifdef STRATA_SANITIZED
    GTEST_SKIP() << "sanitizers tell of MPI's own leaks and orders of locks";
#endif
    if (std::system("command -v mpirun > /dev/null") != 0)
      GTEST_SKIP() << "no mpirun (openmpi-bin)";
    TrainTest::SetUp();
  }

  [[nodiscard]] static bool runs_all() {
    const char* which = std::getenv("STRATA_RANKS");
    return which != nullptr && std::string(which) == "all";
  }
  [[nodiscard]] static std::string start_of(int number, const TrainOptions& o) {
    return fmt::format("{}-n {} {}", kMpirun, number, quoted(command_of(o)));
  }
  [[nodiscard]] static Ended run_ranks(int number, const TrainOptions& o) {
    return run_shell(start_of(number, o));
  }
  // Two ranks, each with a command of its own: by a script, since Debian 13's mpirun (5.0.7)
  // crashes on two commands with a colon between.
  [[nodiscard]] Ended run_apart(const std::vector<std::string>& first,
                                const std::vector<std::string>& second,
                                const std::string& env_of_second = "") const {
    const std::string script = root_ + "/by_rank.sh";
    std::ofstream(script) << fmt::format(
        "if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then exec {}; fi\nexec env {} {}\n", quoted(first),
        env_of_second, quoted(second));
    return run_shell(fmt::format("{}-n 2 sh '{}'", kMpirun, script));
  }
  [[nodiscard]] TrainOptions divided(const TrainOptions& one, const std::string& out,
                                     const StageOptions& stages, int number) const {
    TrainOptions o = one;
    o.out = root_ + "/" + out;
    o.stages = stages;
    o.stages.ranks = fmt::format("pipeline={}", number);
    return o;
  }
  [[nodiscard]] TrainOptions dealt(const TrainOptions& one, const std::string& out,
                                   const std::string& ranks,
                                   const StageOptions& stages = {}) const {
    TrainOptions o = divided(one, out, stages, 1);
    o.stages.ranks = ranks;
    return o;
  }
  void expect_the_files_of(const TrainOptions& one, const std::string& out,
                           const std::string& exported) const {
    expect_same_files(fs::path(one.out).filename().string(), out,
                      {exported, "trainer/optimizer.safetensors", "trainer/state.json"});
  }
};

}  // namespace strata::apps
