// SPDX-License-Identifier: Apache-2.0
#include "api/command_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace strata::api {
namespace {

// One command of each operation, with something in every list.
std::vector<Command> commands() {
  Datum datum = {.tokens = {1, 2, 3}, .targets = {2, 3, 4, 5, 6, 7}, .num_targets = 2};
  datum.inputs[LossInput::kAdvantages] = {0.5f, -1.0f, 2.0f};
  ForwardBackward pass = {.data = {datum, {.tokens = {9}}}, .loss = default_loss(LossName::kPpo)};
  Sample sample;
  sample.prompt = {5, 6};
  sample.max_tokens = 7;
  sample.temperature = 0.5f;
  sample.logit_bias = {{.token = 3, .add = -1.5f}};
  sample.stop = {0};
  sample.prompt_targets = {.first = {0, 1, 1}, .ids = {4}};
  sample.snapshot = {"snapshot"};
  sample.snapshot_dir = "a folder";
  sample.num_samples = 2;
  sample.stop_texts = {"\n", ""};
  sample.streams_tokens = true;
  const std::vector<Operation> operations = {
      CreateModel{.lora = {.rank = 8, .seed = 3, .train_mlp = false}, .load_dir = "d"},
      pass,
      OptimStep{.adamw = {.lr = 0.25, .grad_clip_norm = 1.0}},
      SaveState{"dir", "base"},
      SaveForSampler{.dir = "dir", .snapshot = {"s"}, .ephemeral = true},
      LoadState{"dir", true},
      UnloadModel{},
      sample,
  };
  std::vector<Command> out;
  for (const Operation& op : operations) {
    out.push_back({.request = {"request"},
                   .tenant = {"tenant"},
                   .session = {"session"},
                   .model = {"model"},
                   .base = BaseId{1},
                   .seq_id = 4,
                   .fingerprint = 0xFEDCBA9876543210,
                   .op = op});
  }
  return out;
}

TEST(CommandBytes, ComeBackAsTheSame) {
  ASSERT_EQ(commands().size(), std::variant_size_v<Operation>);
  for (const Command& command : commands()) {
    const std::string bytes = to_bytes(command);
    const Command read = command_from_bytes(bytes);
    EXPECT_EQ(to_bytes(read), bytes);
    EXPECT_EQ(read.op.index(), command.op.index());
    EXPECT_EQ(read.request, command.request);
    EXPECT_EQ(read.fingerprint, command.fingerprint);
  }
  const auto pass = std::get<ForwardBackward>(command_from_bytes(to_bytes(commands()[1])).op);
  EXPECT_EQ(pass.data[0].targets, (std::vector<int32_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(pass.data[0].inputs[LossInput::kAdvantages], (std::vector<float>{0.5f, -1.0f, 2.0f}));
  EXPECT_EQ(pass.loss.options, default_loss(LossName::kPpo).options);
  const auto sample = std::get<Sample>(command_from_bytes(to_bytes(commands()[7])).op);
  EXPECT_EQ(sample.stop_texts, (std::vector<std::string>{"\n", ""}));
  EXPECT_EQ(sample.logit_bias[0].add, -1.5f);
  EXPECT_TRUE(sample.scaled_logprobs && sample.streams_tokens);
}

// What was kept is read for ever: a form that changes has another number.
TEST(CommandBytes, OfAFormThatIsKept) {
  const Command command = {.request = {"r"}, .seq_id = 2, .op = LoadState{"d", true}};
  const std::string wanted(
      "\x01"
      "\x01\0\0\0\0\0\0\0r"
      "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
      "\0\0\0\0"
      "\x02\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0"
      "\x05"
      "\x01\0\0\0\0\0\0\0d"
      "\x01",
      65);
  EXPECT_EQ(to_bytes(command), wanted);
}

TEST(CommandBytes, OfAnyOtherKindAreRefused) {
  for (const Command& command : commands()) {
    const std::string bytes = to_bytes(command);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_THROW(command_from_bytes(bytes.substr(0, size)), Error) << size;
    EXPECT_THROW(command_from_bytes(bytes + '\0'), Error);
    // Each byte changed: refused, or another command, whose bytes these are.
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ 0x81);
      try {
        EXPECT_EQ(to_bytes(command_from_bytes(changed)), changed);
      } catch (const Error&) {
      }
    }
  }
  try {
    command_from_bytes("\x07");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("byte 1: got form 7, want 1"));
  }
}

}  // namespace
}  // namespace strata::api
