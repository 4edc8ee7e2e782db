// SPDX-License-Identifier: Apache-2.0
// A run of strata train that is stopped, saves by steps or by time, keeps its best and ends early:
// what it says, what it leaves, and that resumed it has the bytes of one that was never stopped.
#include <fmt/format.h>
#include <pty.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "tests/trainer/train_fixture.h"
#include "trainer/state.h"

namespace strata::apps {
namespace {

constexpr int64_t kUnsteadySteps = 80;
constexpr const char* kAdapter = "adapter_model.safetensors";

class TrainStopTest : public TrainTest {
 protected:
  // Sends the signal once the run has logged so many more lines; the exit code.
  [[nodiscard]] int stop_after(const TrainOptions& o, int64_t lines, int signal) const {
    lines += lines_of(o.out + "/metrics.jsonl");
    const pid_t pid = start(o);
    int status = 0;
    while (lines_of(o.out + "/metrics.jsonl") < lines && ::waitpid(pid, &status, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::kill(pid, signal);
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Starts it with stdout and stderr in a pipe, as `2>&1 | tee log` has them, of which the reader
  // goes as the first signal comes; how it ended, as a shell has it.
  [[nodiscard]] int stop_without_reader(const TrainOptions& o, const std::vector<int>& all,
                                        const std::string& logs = "") const {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::signal(SIGHUP, SIG_DFL);
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      exec(o);
    }
    ::close(ends[1]);
    await_steps(logs.empty() ? o.out : logs, pid);
    ::close(ends[0]);
    for (const int signal : all) ::kill(pid, signal);
    return exit_code_of(pid);
  }
  // At a terminal that is closed.
  [[nodiscard]] int stop_by_closing_terminal(const TrainOptions& o) const {
    int terminal = -1;
    const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
    if (pid == 0) {
      ::signal(SIGHUP, SIG_DFL);
      exec(o);
    }
    await_steps(o.out, pid);
    ::close(terminal);
    return exit_code_of(pid);
  }
  void await_steps(const std::string& out, pid_t pid) const {
    for (int i = 0; i < 60'000 && lines_of(out + "/metrics.jsonl") < 4; ++i) {
      if (::kill(pid, 0) != 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[nodiscard]] static int exit_code_of(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  [[nodiscard]] std::string said(const TrainOptions& o) const { return content(o.out + ".stderr"); }
  // Stops a run by each signal, resumes it, and compares it with one that was never stopped.
  void expect_stops_change_nothing(TrainOptions straight, TrainOptions stopped,
                                   const std::vector<std::string>& names) const {
    straight.steps = stopped.steps = 150;
    ASSERT_EQ(run_train(straight), 0);
    EXPECT_EQ(stop_after(stopped, 6, SIGINT), 130);
    EXPECT_NE(said(stopped).find("saved at step "), std::string::npos) << said(stopped);
    EXPECT_NE(said(stopped).find("; continue with: strata train --resume --out "),
              std::string::npos);
    EXPECT_EQ(stop_after(stopped, 10, SIGTERM), 143);
    EXPECT_NE(said(stopped).find("resuming after "), std::string::npos) << said(stopped);
    TrainOptions last = stopped;
    last.resume = true;
    ASSERT_EQ(run_train(last), 0);
    expect_same_files(fs::path(straight.out).filename(), fs::path(stopped.out).filename(), names);
  }
  [[nodiscard]] std::set<std::string> folders(const std::string& out) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_ + "/" + out)) {
      if (entry.is_directory()) names.insert(entry.path().filename().string());
    }
    return names;
  }
  // Of the evaluations behind the first step.
  struct Lowest {
    double loss = INFINITY;
    int64_t step = 0;
  };
  [[nodiscard]] static Lowest lowest_of(const TrainOptions& o) {
    Lowest lowest;
    for (const auto& record : report::read_metrics(o.out + "/metrics.jsonl")) {
      const double loss = record.number("eval_loss");
      if (record.step > 0 && loss < lowest.loss) lowest = {loss, record.step};
    }
    return lowest;
  }
  // Rates so high that the loss goes up and down.
  [[nodiscard]] TrainOptions unsteady(const std::string& out) const {
    TrainOptions o = options(out);
    o.steps = kUnsteadySteps;
    o.lr = 0.3;
    o.lr_schedule = "constant";
    o.eval_every = 1;
    return o;
  }
};

const std::vector<std::string> kOfLora = {kAdapter, "adapter_config.json",
                                          "trainer/optimizer.safetensors", "trainer/state.json"};

TEST_F(TrainStopTest, AStoppedLoraRunResumesToTheSameBits) {
  TrainOptions straight = options("straight"), stopped = options("stopped");
  straight.save_every = stopped.save_every = "0";
  expect_stops_change_nothing(straight, stopped, kOfLora);
}

TEST_F(TrainStopTest, NobodyWhoListensIsNeededToSave) {
  TrainOptions o = options("out");
  o.steps = 5000;
  o.save_every = "0";
  for (const std::vector<int>& signals :
       {std::vector<int>{SIGINT}, {SIGTERM}, {SIGHUP}, {SIGHUP, SIGHUP}, {SIGUSR1}, {SIGUSR2}}) {
    fs::remove_all(o.out);
    EXPECT_EQ(stop_without_reader(o, signals), 128 + signals.front());
    EXPECT_TRUE(has_train_state(o.out)) << signals.front();
    EXPECT_TRUE(file_exists(o.out + "/" + kAdapter)) << signals.front();
  }
  TrainOptions sweep = o;
  sweep.lr.reset();
  sweep.sweep = {"1e-3", "1e-2"};
  sweep.out = root_ + "/sweep";
  const std::string first = sweep.out + "/lr-1e-3";
  EXPECT_EQ(stop_without_reader(sweep, {SIGINT}, first), 128 + SIGINT);
  EXPECT_TRUE(has_train_state(first));
  EXPECT_TRUE(has_train_state(sweep.out + "/lr-1e-2"));
}

TEST_F(TrainStopTest, ATerminalThatIsClosedLosesNothing) {
  TrainOptions o = options("out");
  o.steps = 5000;
  o.save_every = "0";
  EXPECT_EQ(stop_by_closing_terminal(o), 128 + SIGHUP);
  EXPECT_TRUE(has_train_state(o.out));
}

TEST_F(TrainStopTest, AStoppedFullRunResumesToTheSameBits) {
  TrainOptions straight = options("straight"), stopped = options("stopped");
  straight.method = stopped.method = "full";
  expect_stops_change_nothing(
      straight, stopped,
      {"model.safetensors", "config.json", "trainer/optimizer.safetensors", "trainer/state.json"});
}

TEST_F(TrainStopTest, AStoppedRunInStagesResumesToTheSameBits) {
  TrainOptions straight = options("straight"), stopped = options("stopped");
  straight.model = stopped.model = deep_model();
  stopped.stages.stages = 2;
  stopped.stages.microbatches = 2;
  // By time, on every step: the ranks do so together.
  stopped.save_every = "0.001s";
  expect_stops_change_nothing(straight, stopped, kOfLora);
}

TEST_F(TrainStopTest, SavesByTimeChangeNothing) {
  TrainOptions steps = options("steps"), time = options("time");
  steps.save_every = "0";
  time.save_every = "0.001s";
  ASSERT_EQ(run_train(steps), 0);
  // Killed at once it has saved all the same.
  TrainOptions killed = time;
  EXPECT_TRUE(kill_after(killed, 20));
  killed.resume = true;
  with_job(killed, [&](TrainJob& job) {
    EXPECT_EQ(job.steps_done(), 0);
    load_train_state(job,
                     compute_train_fingerprint(job.settings(), job.spec().texts,
                                               {job.train_data().files, job.eval_data().files},
                                               std::string(job.engine().backend().arithmetic())));
    EXPECT_GT(job.steps_done(), 0);
  });
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("steps", "time", kOfLora);
}

// On a terminal: Ctrl-C, and 60 columns that hold the loss whole.
TEST_F(TrainStopTest, ControlCOnATerminalSaves) {
  TrainOptions o = options("out");
  o.steps = 3000;
  winsize size = {.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (pid == 0) exec(o);
  std::string seen;
  char buffer[4096];
  bool asked = false;
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
    seen.append(buffer, static_cast<size_t>(got));
    if (!asked && lines_of(o.out + "/metrics.jsonl") >= 10) {
      asked = ::write(terminal, "\x03", 1) == 1;
    }
  }
  ::close(terminal);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 130) << status;
  EXPECT_NE(seen.find("saving after this step"), std::string::npos) << seen;
  const size_t at = seen.rfind("saved at step ");
  ASSERT_NE(at, std::string::npos) << seen;
  EXPECT_NE(seen.find("; continue with: strata train --resume --out ", at), std::string::npos)
      << seen;
  EXPECT_EQ(seen[at - 1], '\n');  // a line of its own, below the bar
  const size_t loss = seen.find("  loss ");
  ASSERT_NE(loss, std::string::npos) << seen;
  for (size_t i = loss; (i = seen.find("  loss ", i)) != std::string::npos; ++i) {
    EXPECT_NE(seen.substr(i + 7, 6).find_last_of("0123456789"), std::string::npos);
    EXPECT_EQ(seen.substr(i, 14).find('~'), std::string::npos) << seen.substr(i, 14);
  }
  EXPECT_TRUE(file_exists(o.out + "/trainer/state.json"));
}

TEST_F(TrainStopTest, KeepsTheNewestSaves) {
  TrainOptions o = options("out");
  o.keep = 2;
  ASSERT_EQ(run_train(o), 0);
  EXPECT_EQ(folders("out"), (std::set<std::string>{"best", "step-28", "step-30", "trainer"}));
  EXPECT_EQ(content(o.out + "/step-30/" + kAdapter), content(o.out + "/" + kAdapter));
  EXPECT_NE(content(o.out + "/step-28/" + kAdapter), content(o.out + "/" + kAdapter));
  // Killed, stopped and resumed it keeps the same ones.
  TrainOptions again = options("again");
  again.keep = 2;
  EXPECT_TRUE(kill_after(again, 12));
  EXPECT_EQ(stop_after(again, 4, SIGINT), 130);
  again.resume = true;
  ASSERT_EQ(run_train(again), 0);
  EXPECT_EQ(folders("again"), folders("out"));
  expect_same_files("out", "again", {"step-28/adapter_model.safetensors", kAdapter});
  TrainOptions none = options("none");
  ASSERT_EQ(run_train(none), 0);
  EXPECT_EQ(folders("none"), (std::set<std::string>{"best", "trainer"}));
}

TEST_F(TrainStopTest, KeepsTheBest) {
  TrainOptions o = unsteady("out");
  o.save_every = "1";
  o.keep = 100;
  o.keep_best = true;
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_train(o), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  const auto [lowest, best] = lowest_of(o);
  ASSERT_GT(best, 0);
  ASSERT_LT(best, kUnsteadySteps - 10);
  EXPECT_EQ(content(o.out + "/best/" + kAdapter),
            content(fmt::format("{}/step-{}/{}", o.out, best, kAdapter)));
  EXPECT_TRUE(file_exists(o.out + "/best/adapter_config.json"));
  EXPECT_NE(text.find(fmt::format("{:.4f} nats per token, perplexity {:.4g}, at step {}: best/",
                                  lowest, std::exp(lowest), best)),
            std::string::npos)
      << text;
  // Stopped behind it and resumed, it is the same one.
  TrainOptions stopped = unsteady("stopped");
  stopped.keep_best = true;
  EXPECT_EQ(stop_after(stopped, 2 * best + 3, SIGINT), 130);
  stopped.resume = true;
  ASSERT_EQ(run_train(stopped), 0);
  expect_same_files("out", "stopped",
                    {"best/adapter_model.safetensors", kAdapter, "trainer/state.json"});
}

// Whoever evaluates has it without asking, and may say no.
TEST_F(TrainStopTest, KeepsTheBestWhereThereIsAnEvaluation) {
  TrainOptions o = unsteady("out");
  ASSERT_EQ(run_train(o), 0);
  EXPECT_TRUE(file_exists(o.out + "/best/" + kAdapter));
  TrainOptions off = unsteady("off");
  off.keep_best = false;
  ASSERT_EQ(run_train(off), 0);
  EXPECT_FALSE(fs::exists(off.out + "/best"));
  TrainOptions blind = options("blind");
  blind.eval_fraction = 0;
  ASSERT_EQ(run_train(blind), 0);
  EXPECT_FALSE(fs::exists(blind.out + "/best"));
}

// Of a run that kept none until its lowest evaluation had gone by.
TEST_F(TrainStopTest, NamesNoBestThatItDoesNotHave) {
  TrainOptions o = unsteady("out");
  o.keep_best = false;
  ASSERT_EQ(run_train(o), 0);
  const int64_t best = lowest_of(o).step;
  ASSERT_GT(best, 0);
  ASSERT_LT(best, kUnsteadySteps - 10);
  TrainOptions stopped = unsteady("stopped");
  stopped.keep_best = false;
  EXPECT_EQ(stop_after(stopped, 2 * best + 3, SIGINT), 130);
  stopped.resume = true;
  stopped.keep_best = true;
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_train(stopped), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(fs::exists(stopped.out + "/best"));
  EXPECT_NE(text.find(fmt::format(", at step {}", best)), std::string::npos) << text;
  EXPECT_EQ(text.find("best/"), std::string::npos) << text;
}

TEST_F(TrainStopTest, EndsEarlyAndGoesOn) {
  TrainOptions straight = unsteady("straight");
  ASSERT_EQ(run_train(straight), 0);
  TrainOptions early = unsteady("early");
  early.early_stop = 3;
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_train(early), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  // What the whole run's log says of it.
  double lowest = INFINITY;
  int64_t since = 0, end = 0;
  for (const auto& record : report::read_metrics(straight.out + "/metrics.jsonl")) {
    const double loss = record.number("eval_loss");
    if (record.step == 0 || !std::isfinite(loss) || since == 3) continue;
    since = loss < lowest ? 0 : since + 1;
    lowest = std::min(lowest, loss);
    end = record.step;
  }
  ASSERT_LT(end, kUnsteadySteps);
  EXPECT_NE(text.find(fmt::format("stopped early at step {} of {}: no new lowest evaluation loss "
                                  "in 3 evaluations",
                                  end, kUnsteadySteps)),
            std::string::npos)
      << text;
  EXPECT_EQ(report::read_metrics(early.out + "/metrics.jsonl").back().step, end);
  // Resumed alike it has ended; without the option it goes on to the bytes of the whole run.
  early.resume = true;
  ASSERT_EQ(run_train(early), 0);
  EXPECT_EQ(report::read_metrics(early.out + "/metrics.jsonl").back().step, end);
  early.early_stop = 0;
  ASSERT_EQ(run_train(early), 0);
  expect_same_files("straight", "early", kOfLora);
}

TEST_F(TrainStopTest, WhatCannotBeIsRefused) {
  for (const char* const wrong : {"10 m", "-5", "m", "1.5", "10d", "", "nan", "0m"}) {
    TrainOptions o = options("out");
    o.save_every = wrong;
    EXPECT_EQ(fault(o), fmt::format("--save-every: got '{}', want a number of steps, or a time as "
                                    "30s, 10m or 2h; 0: at the end only",
                                    wrong));
  }
  TrainOptions o = options("out");
  o.eval_fraction = 0;
  o.keep_best = true;
  EXPECT_EQ(fault(o),
            "--keep-best: there are no evaluation examples; give --eval, or --eval-fraction above "
            "0");
  o.keep_best = false;
  o.early_stop = 2;
  EXPECT_NE(fault(o).find("--early-stop: there are no evaluation examples"), std::string::npos);
  o.early_stop = 0;
  o.eval_every = 5;
  EXPECT_NE(fault(o).find("--eval-every: there are no evaluation examples"), std::string::npos);
  EXPECT_FALSE(fs::exists(o.out));
}

TEST_F(TrainStopTest, ResumeSaysWhereItBegins) {
  TrainOptions o = options("out");
  o.steps = 20;
  o.resume = true;
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_train(o), 0);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("--resume: no saved state in " + o.out +
                                                        "; training starts at step 1\n"),
            std::string::npos);
  // Nothing is left to do: no speed is made up.
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_train(o), 0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("0 tokens/s"), std::string::npos) << text;
  EXPECT_EQ(text.find("tok/s"), std::string::npos) << text;
  EXPECT_NE(text.find("no step was left to do"), std::string::npos) << text;
  EXPECT_EQ(text.find("no saved state"), std::string::npos) << text;
}

}  // namespace
}  // namespace strata::apps
