// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "schedule/lower.h"
#include "tests/schedule/tables.h"

namespace strata::schedule {
namespace {

using testing::HasSubstr;

TEST(Csv, WhatIsWrittenIsReadAgain) {
  for (const Spec& spec : all_specs(4, 8, 3)) {
    const Table table = generate(spec);
    EXPECT_EQ(read_csv(csv_text(table), "t").table, table) << name_of(spec);
    const Table lowered = lower(table);
    EXPECT_EQ(read_csv(csv_text(lowered), "t").table, lowered) << name_of(spec);
  }
}

TEST(Csv, ReadsIdlePlacesQuotesAndEitherEndOfLine) {
  const Table table = read_csv("0F0, ,\"0B0\"\r\n,1F0,1B0\r\n", "t").table;
  ASSERT_EQ(table.num_ranks(), 2);
  EXPECT_EQ(table.num_stages, 2);
  EXPECT_EQ(table.num_microbatches, 1);
  EXPECT_EQ(table.rows[0], (std::vector<Slot>{Slot(Action{Op::kForward, 0, 0}), Slot(),
                                              Slot(Action{Op::kBackward, 0, 0})}));
  EXPECT_EQ(table.rows[1][0].count, 0);
  EXPECT_EQ(read_csv("0F0\n\n0B0", "t").table.num_ranks(), 3);
}

TEST(Csv, ReadsPairs) {
  const Table table = read_csv("(0F7;7B3)OVERLAP_F_B\n", "t").table;
  EXPECT_EQ(table.rows[0][0], Slot(Action{Op::kForward, 0, 7}, Action{Op::kBackward, 7, 3}));
  EXPECT_EQ(csv_text(table), "(0F7;7B3)OVERLAP_F_B\n");
}

TEST(Csv, ReadsTheOlderForm) {
  EXPECT_EQ(csv_text(read_csv("0F0,0BW0,0F1,0B1,0W1", "t").table), "0F0,0B0,0F1,0I1,0W1\n");
  EXPECT_EQ(csv_text(read_csv("0F0,0B0,0W0\n1F0,1B0,1W0", "t").table),
            "0F0,0I0,0W0\n1F0,1I0,1W0\n");
  EXPECT_EQ(csv_text(read_csv("0F0,0BW0,(1F0;0BW1)OVERLAP_F_B", "t").table),
            "0F0,0B0,(1F0;0B1)OVERLAP_F_B\n");
  // With I it is the newer form, where B is both.
  EXPECT_EQ(csv_text(read_csv("0F0,0B0,0F1,0I1,0W1", "t").table), "0F0,0B0,0F1,0I1,0W1\n");
}

TEST(Csv, PyTorchsActionsOnShardedWeightsAreLeftOutAndCounted) {
  const CsvTable csv =
      read_csv(pytorch_file("interleaved_with_transfers_4_8_2.csv"), "interleaved");
  EXPECT_EQ(csv.left_out.at("UNSHARD"), 8);
  EXPECT_EQ(csv.left_out.at("RESHARD"), 8);
  EXPECT_EQ(csv.left_out.at("REDUCE_GRAD"), 8);
  EXPECT_EQ(csv.left_out.at("WAIT_REDUCE_GRAD"), 8);
  EXPECT_EQ(csv.left_out.at("WAIT_SEND_F"), 56);
  EXPECT_EQ(csv.left_out.at("WAIT_SEND_B"), 56);
  EXPECT_TRUE(has_transfers(csv.table));
  EXPECT_EQ(csv.table.num_stages, 8);
}

// A row without a place takes memory too, and the verifier time for each rank and stage.
TEST(Csv, HasAtMostSoManyRows) {
  EXPECT_EQ(read_csv(std::string(65536, '\n'), "t").table.num_ranks(), 65536);
  try {
    static_cast<void>(read_csv(std::string(65537, '\n'), "t"));
    ADD_FAILURE() << "it was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("t: more than 65536 rows"));
  }
}

TEST(Csv, WhatIsNoTableIsRefusedByPlace) {
  const struct {
    const char* text;
    const char* what;
  } kCases[] = {
      {"", "t: it is empty"},
      {"0F0,0G0", "t: rank 0, slot 1: got '0G0', want {stage}{op}{micro-batch}"},
      {"0F0\n1F0,,F0", "t: rank 1, slot 2: got 'F0'"},
      {"0F", "got '0F'"},
      {"0F0x", "got '0F0x'"},
      {"0F0 0B0", "got '0F0 0B0'"},
      {"-1F0", "got '-1F0'"},
      {"0F-1", "got '0F-1'"},
      {"0F1000000", "at most 6 digits"},
      {"1000000F0", "at most 6 digits"},
      {"99999999999999999999F0", "at most 6 digits"},
      {"0f0", "got '0f0'"},
      {"0F0,0I0,0BW1", "got '0BW1'"},
      {"0SEND_X0", "got '0SEND_X0'"},
      {"(0F0;1B0)", "({action};{action})OVERLAP_F_B"},
      {"(0F0)OVERLAP_F_B", "got ''"},
      {"(0F0;1B0;2B0)OVERLAP_F_B", "({action};{action})OVERLAP_F_B"},
      {"(;)OVERLAP_F_B", "got ''"},
      {"((0F0;1B0)OVERLAP_F_B;1B0)OVERLAP_F_B", "got '(0F0'"},
      {"(0F0;1UNSHARD)OVERLAP_F_B", "({action};{action})OVERLAP_F_B"},
      {"0F0\x01\xff", "got '0F0\?\?'"},
      {"\"0F0", "got '\"0F0'"},
  };
  for (const auto& c : kCases) {
    try {
      read_csv(c.text, "t");
      ADD_FAILURE() << c.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(c.what)) << c.text;
    }
  }
  EXPECT_THROW(read_csv(std::string(8'000'001, ','), "t"), Error);
  EXPECT_THROW(read_csv(std::string("0F0\0", 4), "t"), Error);
}

}  // namespace
}  // namespace strata::schedule
