// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "schedule/lower.h"
#include "schedule/verify.h"
#include "tests/schedule/tables.h"

namespace strata::schedule {
namespace {

using testing::HasSubstr;

std::string fnv1a(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char out[17];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(value));
  return out;
}

struct Row {
  Spec spec;
  std::string queues, lowered;  // "refused", ""
};

std::vector<Row> pytorch_rows() {
  std::vector<Row> rows;
  std::istringstream lines(pytorch_file("queues.txt"));
  std::string line, name;
  std::getline(lines, line);  // the version
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    Row row;
    words >> name >> row.spec.num_ranks >> row.spec.num_microbatches >> row.spec.num_chunks >>
        row.queues >> row.lowered;
    EXPECT_TRUE(parse_kind(name, row.spec.kind)) << line;
    rows.push_back(row);
  }
  return rows;
}

bool is_refused(const Spec& spec) {
  try {
    generate(spec);
    return false;
  } catch (const Error&) {
    return true;
  }
}

// For p in 2..8, m in 4..32, v in 1..4. Exceptions: PyTorch runs the backwards of circular in
// descending order and takes any number of micro-batches, and it refuses 1f1b with m < p.
TEST(Generate, QueuesEqualThoseOfPyTorch) {
  std::map<Kind, int> equal;
  for (const Row& row : pytorch_rows()) {
    SCOPED_TRACE(name_of(row.spec));
    const bool is_circular = row.spec.kind == Kind::kCircular;
    if (row.queues == "refused") {
      const bool is_short = row.spec.kind == Kind::k1f1b || row.spec.kind == Kind::kGpipe;
      EXPECT_EQ(is_refused(row.spec), !is_short);
      EXPECT_TRUE(!is_short || row.spec.num_microbatches < row.spec.num_ranks);
      continue;
    }
    if (is_circular && row.spec.num_microbatches % row.spec.num_ranks != 0) {
      EXPECT_TRUE(is_refused(row.spec));
      continue;
    }
    Table table = generate(row.spec);
    if (is_circular) table = with_descending_backwards(std::move(table));
    EXPECT_EQ(fnv1a(csv_text(table)), row.queues);
    EXPECT_EQ(fnv1a(csv_text(lower(table))), row.lowered);
    ++equal[row.spec.kind];
  }
  EXPECT_EQ(equal[Kind::kGpipe], 203);
  EXPECT_EQ(equal[Kind::k1f1b], 193);
  EXPECT_EQ(equal[Kind::kCircular], 204);
  EXPECT_EQ(equal[Kind::kInterleaved], 440);
  EXPECT_EQ(equal[Kind::kZb1p], 440);
}

TEST(Generate, WholeTablesEqualThoseOfPyTorch) {
  for (const Kind kind : {Kind::kCircular, Kind::kInterleaved, Kind::kZb1p}) {
    Table ours = generate({.kind = kind, .num_ranks = 4, .num_microbatches = 8, .num_chunks = 2});
    if (kind == Kind::kCircular) ours = with_descending_backwards(std::move(ours));
    const std::string name = std::string(kind_name(kind)) + "_4_8_2.csv";
    EXPECT_EQ(csv_text(ours), csv_text(without_idle(pytorch_table(name)))) << name;
  }
}

// torch 2.15 prints 1f1b with forwards 1 to m, not 0 to m - 1, on the last rank; it does not run
// it.
TEST(Generate, ThePrinted1f1bOfPyTorchIsWrongOnTheLastRank) {
  Table printed = pytorch_table("1f1b_printed_4_8.csv");
  const Table ours = generate({.kind = Kind::k1f1b, .num_ranks = 4, .num_microbatches = 8});
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(printed.rows[rank], ours.rows[rank]) << rank;
  EXPECT_NE(printed.rows[3], ours.rows[3]);
  EXPECT_EQ(printed.num_microbatches, 9);
  printed.num_microbatches = 8;
  const std::optional<Fault> fault = verify(printed);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rule, Rule::kRange);
  EXPECT_EQ(fault->rank, 3);
  EXPECT_EQ(fault->action, "3F8");
}

TEST(Generate, TheWarmUpOf1f1bIsAtMostAllMicroBatches) {
  const Table table = generate({.kind = Kind::k1f1b, .num_ranks = 4, .num_microbatches = 2});
  EXPECT_EQ(csv_text(table),
            "0F0,0F1,0B0,0B1\n"
            "1F0,1F1,1B0,1B1\n"
            "2F0,2F1,2B0,2B1\n"
            "3F0,3B0,3F1,3B1\n");
}

TEST(Generate, CircularRunsRepeatsOneAfterTheOther) {
  const Table table =
      generate({.kind = Kind::kCircular, .num_ranks = 2, .num_microbatches = 2, .num_chunks = 2});
  EXPECT_EQ(csv_text(table),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
}

// Also what the verifier is for: it accepts what the generator writes, lowered or not.
TEST(Generate, EveryTableIsVerified) {
  int count = 0;
  for (Spec spec : all_specs(/*max_ranks=*/6, /*max_microbatches=*/14, /*max_chunks=*/4)) {
    const Table table = generate(spec);
    const std::optional<Fault> fault = verify(table);
    ASSERT_FALSE(fault) << name_of(spec) << ": " << to_string(*fault);
    const Table with_transfers = lower(table);
    const std::optional<Fault> lowered = verify(with_transfers);
    ASSERT_FALSE(lowered) << name_of(spec) << ": " << to_string(*lowered);
    ASSERT_EQ(without_transfers(with_transfers), table) << name_of(spec);
    if (spec.kind == Kind::kCircular && spec.num_microbatches >= 2 * spec.num_ranks) {
      spec.forwarding_delay = 2;
      const std::optional<Fault> delayed = verify(lower(generate(spec), 2));
      ASSERT_FALSE(delayed) << name_of(spec) << ": " << to_string(*delayed);
    }
    ++count;
  }
  EXPECT_GT(count, 700);
}

// Of an order of chunks, +k a forward and -k a backward: each +k is balanced by one -k, no prefix
// holds more backwards than forwards, and no backward comes first (Megatron-LM's tests).
TEST(Generate, OrdersKeepMegatronsInvariants) {
  for (const Spec& spec : all_specs(5, 10, 3)) {
    const Table table = generate(spec);
    for (const std::vector<Slot>& row : table.rows) {
      std::map<int, int> balance;
      ASSERT_EQ(row.front().parts[0].op, Op::kForward) << name_of(spec);
      for (const Slot& slot : row) {
        const Action& a = slot.parts[0];
        if (a.op == Op::kForward) ++balance[a.stage / spec.num_ranks];
        if (is_backward(a.op)) --balance[a.stage / spec.num_ranks];
        ASSERT_GE(balance[a.stage / spec.num_ranks], 0) << name_of(spec);
      }
      for (const auto& [chunk, sum] : balance) ASSERT_EQ(sum, 0) << name_of(spec) << chunk;
    }
  }
}

TEST(Generate, WhatDoesNotExistIsRefusedWithAllNumbers) {
  const struct {
    Spec spec;
    const char* what;
  } kCases[] = {
      {{.kind = Kind::kGpipe, .num_ranks = 2, .num_microbatches = 4, .num_chunks = 3},
       "schedule gpipe: 2 ranks, 4 micro-batches, 3 chunks a rank: it has one chunk"},
      {{.kind = Kind::k1f1b, .num_ranks = 2, .num_microbatches = 4, .num_chunks = 2}, "one chunk"},
      {{.kind = Kind::kCircular, .num_ranks = 4, .num_microbatches = 6, .num_chunks = 2},
       "schedule circular: 4 ranks, 6 micro-batches, 2 chunks a rank: the micro-batches must be a "
       "multiple of the ranks"},
      {{.kind = Kind::kInterleaved, .num_ranks = 4, .num_microbatches = 9, .num_chunks = 2},
       "schedule interleaved: 4 ranks, 9 micro-batches, 2 chunks a rank: the micro-batches must be "
       "a multiple of the rounds, which are 2"},
      {{.kind = Kind::kZb1p, .num_ranks = 2, .num_microbatches = 5, .num_chunks = 2}, "rounds"},
      {{.kind = Kind::kGpipe, .num_ranks = 0}, "at least 1"},
      {{.kind = Kind::kGpipe, .num_microbatches = 0}, "at least 1"},
      {{.kind = Kind::kCircular, .num_chunks = -1}, "at least 1"},
      {{.kind = Kind::kGpipe, .num_ranks = 1 << 30, .num_microbatches = 1 << 30}, "at most"},
      {{.kind = Kind::kCircular, .num_ranks = 4, .num_microbatches = 4, .forwarding_delay = 2},
       "twice as many micro-batches as ranks"},
      {{.kind = Kind::kGpipe, .num_microbatches = 4, .forwarding_delay = 2}, "only circular"},
      {{.kind = Kind::kCircular, .forwarding_delay = 3}, "got a forwarding delay of 3"},
  };
  for (const auto& c : kCases) {
    try {
      generate(c.spec);
      ADD_FAILURE() << c.what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(c.what));
    }
  }
}

// With a delay an output travels while the next one is computed.
TEST(Lower, ADelaySendsAnOutputBehindTheNextForward) {
  const Spec spec{.kind = Kind::kCircular, .num_ranks = 2, .num_microbatches = 4};
  EXPECT_EQ(csv_text({.rows = {lower(generate(spec)).rows[0]}}),
            "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,0RECV_B0,0B0,0RECV_B1,0B1,"
            "0RECV_B2,0B2,0RECV_B3,0B3\n");
  EXPECT_EQ(csv_text({.rows = {lower(generate(spec), 2).rows[0]}}),
            "0F0,0F1,0SEND_F0,0F2,0SEND_F1,0F3,0SEND_F2,0SEND_F3,0RECV_B0,0B0,0RECV_B1,0B1,"
            "0RECV_B2,0RECV_B3,0B2,0B3\n");
}

}  // namespace
}  // namespace strata::schedule
