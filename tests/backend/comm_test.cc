// SPDX-License-Identifier: Apache-2.0
#include "backend/comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/mpi_comm.h"
#include "backend/process_ranks.h"
#include "backend/thread_comm.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/threads.h"
#include "tests/base/sanitizer.h"

namespace strata {
namespace {

constexpr int64_t kChunkBytes = 100000;  // of an MPI message: more than MPI sends at once

void send_int(Comm& comm, int to, int64_t tag, int value) {
  comm.send_bytes(to, tag, &value, sizeof(value));
}
int receive_int(Comm& comm, int from, int64_t tag) {
  int value = -1;
  comm.receive_bytes(from, tag, &value, sizeof(value));
  return value;
}

void tags_keep_their_order(Comm& comm) {
  EXPECT_EQ(comm.size(), 2);
  // Twice, in bursts of different length: what waits wraps around the channel's buffers.
  for (const int count : {3, 7}) {
    if (comm.rank() == 0) {
      for (int i = 0; i < count; ++i) {
        send_int(comm, 1, /*tag=*/4, i);
        send_int(comm, 1, /*tag=*/5, 100 + i);
      }
      EXPECT_EQ(receive_int(comm, 1, 6), count);
    } else {
      for (int i = 0; i < count; ++i) EXPECT_EQ(receive_int(comm, 0, 5), 100 + i);
      for (int i = 0; i < count; ++i) EXPECT_EQ(receive_int(comm, 0, 4), i);
      send_int(comm, 0, 6, count);
    }
  }
}

void channel_grows_while_its_oldest_is_in_the_middle(Comm& comm) {
  for (int i = 0; i < 3; ++i) send_int(comm, 0, 0, i);
  EXPECT_EQ(receive_int(comm, 0, 0), 0);
  EXPECT_EQ(receive_int(comm, 0, 0), 1);
  for (int i = 3; i < 9; ++i) send_int(comm, 0, 0, i);
  for (int i = 2; i < 9; ++i) EXPECT_EQ(receive_int(comm, 0, 0), i);
}

void tensors_and_gathered_values(Comm& comm) {
  std::vector<float> values(6, static_cast<float>(comm.rank()));
  const TensorView view(values.data(), DType::kF32, {2, 3});
  comm.send((comm.rank() + 1) % 3, 1, view);
  std::fill(values.begin(), values.end(), -1.0f);  // what was sent is a copy
  comm.receive((comm.rank() + 2) % 3, 1, view);
  EXPECT_EQ(values, std::vector<float>(6, static_cast<float>((comm.rank() + 2) % 3)));
  std::vector<double> all;
  const std::vector<double> own = {10.0 * comm.rank(), 10.0 * comm.rank() + 1};
  comm.all_gather(own, all);
  EXPECT_EQ(all, (std::vector<double>{0, 1, 10, 11, 20, 21}));
}

// Both send before either receives, sizes around those of a chunk, and nothing at all.
void large_messages_cross(Comm& comm) {
  const int other = 1 - comm.rank();
  for (const int64_t count :
       {0L, 1L, kChunkBytes - 1, kChunkBytes, kChunkBytes + 1, 8 * kChunkBytes + 3}) {
    std::vector<uint8_t> sent(static_cast<size_t>(count)), received(sent.size());
    for (size_t i = 0; i < sent.size(); ++i)
      sent[i] = static_cast<uint8_t>(i * 7 + i / 256 + static_cast<size_t>(comm.rank()));
    for (int i = 0; i < 2; ++i) comm.send_bytes(other, 9, sent.data(), count);
    for (size_t i = 0; i < sent.size(); ++i)
      sent[i] = static_cast<uint8_t>(i * 7 + i / 256 + static_cast<size_t>(other));
    for (int i = 0; i < 2; ++i) {
      std::fill(received.begin(), received.end(), uint8_t{0});
      comm.receive_bytes(other, 9, received.data(), count);
      EXPECT_TRUE(received == sent) << count;
    }
  }
}

// Another thread of rank 0 answers whoever asks, itself too, while the rank sends and receives.
void a_thread_answers_any_rank(Comm& comm) {
  constexpr int kAsked = 20;
  std::jthread answering;
  if (comm.rank() == 0) {
    answering = std::jthread([&comm] {
      for (int i = 0; i < 3 * kAsked; ++i) {
        const int from = receive_int(comm, Comm::kAnyRank, 7);
        send_int(comm, from, 8, 100 * from);
      }
    });
  }
  for (int i = 0; i < kAsked; ++i) {
    send_int(comm, 0, 7, comm.rank());
    send_int(comm, (comm.rank() + 1) % 3, 9, i);
    EXPECT_EQ(receive_int(comm, (comm.rank() + 2) % 3, 9), i);
    EXPECT_EQ(receive_int(comm, 0, 8), 100 * comm.rank());
  }
}

// A large one arrives while its sender computes, and calls nothing of its Comm.
void messages_move_while_their_sender_computes(Comm& comm) {
  constexpr double kLongest = 60.0;  // seconds
  std::vector<uint8_t> large(static_cast<size_t>(8 * kChunkBytes));
  const auto arrived = [](int process) {
    return testing::TempDir() + "strata_arrived_" + std::to_string(process);
  };
  if (comm.rank() == 1) {
    const int process = receive_int(comm, 0, 1);
    comm.receive_bytes(0, 2, large.data(), std::ssize(large));
    std::ofstream(arrived(process)) << "all of it";
    return;
  }
  const std::string file = arrived(::getpid());
  std::filesystem::remove(file);
  send_int(comm, 1, 1, ::getpid());
  comm.send_bytes(1, 2, large.data(), std::ssize(large));
  const double end = now_seconds() + kLongest;
  while (!std::filesystem::exists(file) && now_seconds() < end) {
  }
  EXPECT_TRUE(std::filesystem::exists(file));
  std::filesystem::remove(file);
}

// Large ones too: nobody waits for what nobody receives.
void what_nobody_receives_is_dropped(Comm& comm) {
  const std::vector<uint8_t> large(static_cast<size_t>(3 * kChunkBytes));
  if (comm.rank() == 0) comm.send_bytes(1, 2, large.data(), std::ssize(large));
  send_int(comm, 1 - comm.rank(), 3, 1);
  EXPECT_EQ(receive_int(comm, 1 - comm.rank(), 3), 1);
}

void a_failed_rank_stops_those_that_wait(Comm& comm) {
  // The others have sent what it never receives.
  if (comm.rank() == 1) throw Error(ErrorCode::kInvalidArgument, "rank 1 found a fault");
  const std::vector<uint8_t> large(static_cast<size_t>(3 * kChunkBytes));
  comm.send_bytes(1, 2, large.data(), std::ssize(large));
  receive_int(comm, 1, 0);  // never sent
}

void a_bug_of_one_is_a_fault_of_all(Comm& comm) {
  if (comm.rank() == 0) throw std::runtime_error("out of luck");
  receive_int(comm, 0, 0);
}

// Ranks of which each process has two: numbers, and messages of one tag between all of them.
void processes_have_several_ranks(Comm& processes) {
  const ProcessRanks ranks = {.threads = 2, .data = 2};
  const int size = 2 * processes.size();
  std::vector<int> seen(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(ranks.rank_of(ranks.process_of(rank), ranks.thread_of(rank)), rank);
    if (ranks.process_of(rank) == processes.rank()) ++seen[static_cast<size_t>(rank)];
  }
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 2);
  run_ranks(processes, ranks, [&](Comm& comm) {
    EXPECT_EQ(comm.size(), size);
    EXPECT_EQ(comm.ranks_here(), 2 * processes.ranks_here());
    EXPECT_EQ(comm.rank_here(),
              ranks.thread_of(comm.rank()) * processes.ranks_here() + processes.rank_here());
    EXPECT_GT(comm.end_of_tags(), 1 << 12);
    std::vector<double> all;
    const double own = comm.rank();
    comm.all_gather({&own, 1}, all);
    std::vector<double> want(static_cast<size_t>(size));
    std::iota(want.begin(), want.end(), 0.0);
    EXPECT_EQ(all, want);
    for (int i = 0; i < 3; ++i) {
      for (int to = 0; to < size; ++to) send_int(comm, to, 4, 100 * comm.rank() + 10 * to + i);
    }
    for (int i = 0; i < 3; ++i) {
      for (int from = size - 1; from >= 0; --from)
        EXPECT_EQ(receive_int(comm, from, 4), 100 * from + 10 * comm.rank() + i);
    }
    // Of any rank: those that are the same thread of their processes, and itself.
    for (int process = 0; process < processes.size(); ++process)
      send_int(comm, ranks.rank_of(process, ranks.thread_of(comm.rank())), 5, comm.rank());
    int sum = 0, wanted = 0;
    for (int process = 0; process < processes.size(); ++process) {
      sum += receive_int(comm, Comm::kAnyRank, 5);
      wanted += ranks.rank_of(process, ranks.thread_of(comm.rank()));
    }
    EXPECT_EQ(sum, wanted);
  });
}

// All the same whether they wait for it in its process or from another one.
void a_failed_thread_stops_those_that_wait(Comm& processes) {
  run_ranks(processes, {.threads = 2}, [](Comm& comm) {
    if (comm.rank() == 3) throw Error(ErrorCode::kInvalidArgument, "rank 3 found a fault");
    receive_int(comm, 3, 0);  // never sent
  });
}

// All that a Comm promises, of ranks of every kind.
// What all but rank 1 wait for does not come; what rank 0 sent is not received.
void work_with_a_failure(Comm& comm, int round) {
  const std::vector<char> large(static_cast<size_t>(3 * kChunkBytes), 'x');
  for (int to = 0; to < comm.size(); ++to) {
    send_int(comm, to, /*tag=*/round % 3, -round);
    comm.send_bytes(to, 4, large.data(), std::ssize(large));
  }
  if (comm.rank() == 1)
    throw Error(ErrorCode::kUnsupported, "no work in round " + std::to_string(round));
  receive_int(comm, 1, /*tag=*/7);
}

std::optional<RankFailure> settled(Comm& comm, const std::function<void()>& work) {
  std::optional<RankFailure> own;
  try {
    work();
  } catch (const Error& error) {
    own = {error.code, error.what()};
  }
  return comm.settle(own);
}

// A failure is each rank's, and leaves nothing for the work that comes next.
void failed_work_is_settled(Comm& comm) {
  for (int round = 1; round <= 6; ++round) {
    const auto failure = settled(comm, [&] { work_with_a_failure(comm, round); });
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->code, ErrorCode::kUnsupported);
    EXPECT_THAT(failure->what, testing::EndsWith("no work in round " + std::to_string(round)));
    const auto next = settled(comm, [&] {
      send_int(comm, (comm.rank() + 1) % 3, round % 3, round + comm.rank());
      EXPECT_EQ(receive_int(comm, (comm.rank() + 2) % 3, round % 3), round + (comm.rank() + 2) % 3);
    });
    EXPECT_FALSE(next.has_value());
  }
  EXPECT_EQ(comm.find_silent_rank(), "");
}

// What breaks in on ranks: values go round with the tags of the work that it breaks in on. The
// third one fails on rank 1.
class RoundBreaks {
 public:
  explicit RoundBreaks(Comm& comm) : comm_(comm) {}
  [[nodiscard]] int64_t num_taken() const { return num_taken_; }
  [[nodiscard]] bool is_asked() const { return comm_.num_breaks_asked() > num_taken_; }
  void take() {
    if (comm_.rank() == 0) comm_.ask_for_break();
    const bool fails = ++num_taken_ == 3;
    const auto failure = settled(comm_.breaking(), [&] { go_round(fails); });
    EXPECT_EQ(failure.has_value(), fails) << num_taken_;
  }

 private:
  void go_round(bool fails) const {
    Comm& comm = comm_.breaking();
    const int next = (comm.rank() + 1) % comm.size();
    send_int(comm, next, /*tag=*/1, -static_cast<int>(num_taken_));
    if (fails && comm.rank() == 1) throw Error(ErrorCode::kUnsupported, "no third break");
    const int from = (comm.rank() + comm.size() - 1) % comm.size();
    EXPECT_EQ(receive_int(comm, from, fails ? 9 : 1), -num_taken_);
  }
  Comm& comm_;
  int64_t num_taken_ = 0;
};

// They come to all where they wait for a message, rank 0 too, and where others have ended theirs.
void breaks_come_to_all_ranks(Comm& comm) {
  RoundBreaks round(comm);
  const auto is_due = [&] { return comm.rank() == 0 ? round.num_taken() < 6 : round.is_asked(); };
  const auto take = [&] { round.take(); };
  const Interruption breaks{.is_due = is_due, .run = take};
  comm.set_breaks(&breaks);
  const auto work = settled(comm, [&] {
    if (comm.rank() == 0) {
      for (int to = 1; to < 3; ++to) send_int(comm, to, 1, 10 + to);
      EXPECT_EQ(receive_int(comm, 1, 1), 20);    // when all of these breaks are over
      for (int i = 0; i < 2; ++i) round.take();  // the others are ready by then, or wait for it
      return send_int(comm, 2, 1, 30);
    }
    EXPECT_EQ(receive_int(comm, 0, 1), 10 + comm.rank());
    if (comm.rank() == 2) {
      EXPECT_EQ(receive_int(comm, 0, 1), 30);
      return;
    }
    while (round.num_taken() < 6) {
      if (is_due()) take();
    }
    send_int(comm, 0, 1, 20);
  });
  comm.set_breaks(nullptr);
  EXPECT_FALSE(work.has_value()) << work->what;
  EXPECT_EQ(round.num_taken(), 8);
}

struct Case {
  const char* name;
  int num_ranks;
  void (*body)(Comm& comm);
  const char* fault = "";
};
constexpr Case kCases[] = {
    {"TagsKeepTheirOrder", 2, tags_keep_their_order},
    {"ChannelGrows", 1, channel_grows_while_its_oldest_is_in_the_middle},
    {"TensorsAndGatheredValues", 3, tensors_and_gathered_values},
    {"LargeMessagesCross", 2, large_messages_cross},
    {"MessagesMoveMeanwhile", 2, messages_move_while_their_sender_computes},
    {"AThreadAnswersAnyRank", 3, a_thread_answers_any_rank},
    {"WhatNobodyReceivesIsDropped", 2, what_nobody_receives_is_dropped},
    {"AFailedRankStopsOthers", 3, a_failed_rank_stops_those_that_wait, "rank 1 found a fault"},
    {"ABugStopsOthers", 2, a_bug_of_one_is_a_fault_of_all, "out of luck"},
    {"FailedWorkIsSettled", 3, failed_work_is_settled},
    {"BreaksComeToAllRanks", 3, breaks_come_to_all_ranks},
    {"ProcessesHaveSeveralRanks", 4, processes_have_several_ranks},
    {"AFailedThreadStopsOthers", 2, a_failed_thread_stops_those_that_wait, "rank 3 found a fault"},
};

class CommCase : public testing::TestWithParam<Case> {};
std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Comm, CommCase, testing::ValuesIn(kCases), name_of);

// Runs it, and looks for the fault that it is to end with.
void expect_end(const Case& c, const std::function<void()>& run) {
  try {
    run();
    EXPECT_STREQ(c.fault, "") << "no error";
  } catch (const std::exception& error) {
    ASSERT_STRNE(c.fault, "") << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(c.fault));
  }
}

TEST_P(CommCase, Threads) {
  const Case& c = GetParam();
  expect_end(c, [&] { run_ranks(c.num_ranks, c.body); });
}

#ifdef STRATA_MPI_PLUGIN
// As a rank among those that Processes starts.
TEST_P(CommCase, DISABLED_Rank) {
  const Case& c = GetParam();
  MpiRanks ranks(STRATA_MPI_PLUGIN, {.chunk_bytes = kChunkBytes});
  ASSERT_EQ(ranks.comm().size(), c.num_ranks) << "not started by mpirun";
  EXPECT_EQ(ranks.speaks(), ranks.comm().rank() == 0);
  expect_end(c, [&] { ranks.run(c.body); });
}
#endif

// What they print on stderr, and the exit code as the last line.
std::string run_ranks_of_mpi(int num_ranks, const std::string& test) {
  const std::string command = "mpirun --oversubscribe --allow-run-as-root --bind-to none -n " +
                              std::to_string(num_ranks) + " " +
                              std::filesystem::read_symlink("/proc/self/exe").string() +
                              " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter='" +
                              test + "' 2>&1 > /dev/null; echo exit code $?";
  std::FILE* out = ::popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) text += static_cast<char>(c);
  ::pclose(out);
  return text;
}

// Why no ranks can be started; empty: they can.
std::string why_no_mpi() {
#ifndef STRATA_MPI_PLUGIN
  return "built without MPI (libopenmpi-dev)";
#else
#ifdef STRATA_SANITIZED
  return "sanitizers tell of MPI's own leaks and orders of locks";
#endif
  return std::system("command -v mpirun > /dev/null") == 0 ? "" : "no mpirun (openmpi-bin)";
#endif
}

TEST_P(CommCase, Processes) {
  if (const std::string why = why_no_mpi(); !why.empty()) GTEST_SKIP() << why;
  const Case& c = GetParam();
  EXPECT_THAT(run_ranks_of_mpi(c.num_ranks, std::string("*.DISABLED_Rank/") + c.name),
              testing::EndsWith("exit code 0\n"));
}

#ifdef STRATA_MPI_PLUGIN
// How many ranks there are, asked of each.
int count_ranks(Comm& comm) {
  std::vector<double> all;
  const double one = 1.0;
  comm.all_gather({&one, 1}, all);
  return static_cast<int>(std::accumulate(all.begin(), all.end(), 0.0));
}

// As one of three ranks that wait for each other, of which the last is stopped.
TEST(MpiRanks, DISABLED_OneIsStopped) {
  MpiRanks ranks(STRATA_MPI_PLUGIN, {.silence = 3.0});
  try {
    ranks.run([](Comm& comm) {
      // By now the others know it.
      EXPECT_EQ(count_ranks(comm), comm.size());
      if (comm.rank() == comm.size() - 1) std::raise(SIGSTOP);
      receive_int(comm, (comm.rank() + 1) % comm.size(), 1);
    });
  } catch (const Error& error) {
    if (ranks.speaks()) std::fprintf(stderr, "said: %s\n", error.what());
  }
}

// As one of three ranks of a server. For one that computes, or was stopped, the others wait.
TEST(MpiRanks, DISABLED_AllWaitForEachOther) {
  MpiRanks ranks(STRATA_MPI_PLUGIN, {.waits_for_silent = true, .deadlock = 2.0});
  try {
    ranks.run([](Comm& comm) {
      if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(5));
      EXPECT_EQ(count_ranks(comm), comm.size());
      receive_int(comm, (comm.rank() + 1) % comm.size(), 1);  // never sent
    });
  } catch (const Error& error) {
    if (ranks.speaks()) std::fprintf(stderr, "said: %s\n", error.what());
  }
}
#endif

TEST(MpiRanks, RanksThatAllWaitForEachOtherEndWithAMessage) {
  if (const std::string why = why_no_mpi(); !why.empty()) GTEST_SKIP() << why;
  const std::string text = run_ranks_of_mpi(3, "MpiRanks.DISABLED_AllWaitForEachOther");
  EXPECT_THAT(text, testing::HasSubstr("ranks wait for each other since 2 s"));
  EXPECT_THAT(text, testing::HasSubstr("for a message of rank 2"));
  EXPECT_THAT(text, testing::EndsWith("exit code 0\n"));
}

TEST(MpiRanks, ASilentRankEndsAllWithAMessageThatNamesIt) {
  if (const std::string why = why_no_mpi(); !why.empty()) GTEST_SKIP() << why;
  const std::string text = run_ranks_of_mpi(3, "MpiRanks.DISABLED_OneIsStopped");
  EXPECT_THAT(text, testing::HasSubstr("said: rank 2 ("));
  EXPECT_THAT(text, testing::HasSubstr("has been silent for 3 s"));
  EXPECT_THAT(text, testing::EndsWith("exit code 1\n"));
}

TEST(MpiRanks, SaysWhatToInstallWhereThereIsNoPlugin) {
  try {
    MpiRanks ranks("/nowhere/libstrata_mpi.so");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("/nowhere/libstrata_mpi.so"));
    EXPECT_THAT(error.what(), testing::HasSubstr("install openmpi-bin"));
  }
}

TEST(Comm, TheFaultOfAThreadKeepsItsCode) {
  const auto run = [] {
    run_ranks(3, [](Comm& comm) {
      if (comm.rank() == 1) throw Error(ErrorCode::kInvalidArgument, "rank 1 found a fault");
      receive_int(comm, 1, 0);  // never sent
    });
  };
  try {
    run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 found a fault");
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace strata
