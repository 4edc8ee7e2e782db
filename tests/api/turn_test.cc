// SPDX-License-Identifier: Apache-2.0
#include "api/turn.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "api/command_bytes.h"
#include "structured/grammar.h"

namespace strata::api {
namespace {

std::shared_ptr<const Command> data_command(const std::string& request, size_t tokens) {
  ForwardBackward work;
  work.data.resize(2);
  work.data[1].tokens.assign(tokens, 7);
  return std::make_shared<const Command>(
      Command{.request = {request}, .tenant = {"alice"}, .model = {"m"}, .op = std::move(work)});
}

std::shared_ptr<const Command> sample_command(const std::string& request) {
  Sample sample;
  sample.prompt = {1, 2, 3};
  sample.num_samples = 5;
  return std::make_shared<const Command>(Command{.request = {request}, .op = std::move(sample)});
}

void expect_same_command(const std::shared_ptr<const Command>& got,
                         const std::shared_ptr<const Command>& want) {
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(to_bytes(*got), to_bytes(*want));
}

TEST(Turn, HasAllOfItsWork) {
  const auto pass = data_command("pass", 9), sample = sample_command("sample");
  Turn turn = {.base = BaseId{3}, .step_tokens = 77};
  turn.work.base = BaseId{3};
  turn.work.control = {data_command("other", 1)};
  turn.work.rows = {{pass, 0, 1}, {pass, 1, 2}};
  turn.work.samples = {{sample, 1, 4, {"bob"}}};
  turn.work.resume = {{{"carol"}, {"dave"}}};
  turn.work.cancel = {{"gone"}};
  turn.work.release = {{"snapshot"}};
  turn.work.decode = true;
  TurnBook here, there;
  const Turn got = there.from_bytes(here.to_bytes(turn));
  EXPECT_EQ(got.kind, Turn::Kind::kWork);
  EXPECT_EQ(got.base, BaseId{3});
  EXPECT_EQ(got.work.base, BaseId{3});
  EXPECT_EQ(got.step_tokens, 77);
  ASSERT_EQ(got.work.control.size(), 1u);
  expect_same_command(got.work.control[0], turn.work.control[0]);
  ASSERT_EQ(got.work.rows.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    expect_same_command(got.work.rows[i].command, pass);
    EXPECT_EQ(got.work.rows[i].first, i);
    EXPECT_EQ(got.work.rows[i].last, i + 1);
  }
  EXPECT_EQ(got.work.rows[0].command, got.work.rows[1].command);
  ASSERT_EQ(got.work.samples.size(), 1u);
  expect_same_command(got.work.samples[0].command, sample);
  EXPECT_EQ(got.work.samples[0].first, 1);
  EXPECT_EQ(got.work.samples[0].last, 4);
  EXPECT_EQ(got.work.samples[0].takes_from.text, "bob");
  ASSERT_EQ(got.work.resume.size(), 1u);
  EXPECT_EQ(got.work.resume[0].tenant.text, "carol");
  EXPECT_EQ(got.work.resume[0].takes_from.text, "dave");
  EXPECT_EQ(got.work.cancel, turn.work.cancel);
  EXPECT_EQ(got.work.release, turn.work.release);
  EXPECT_TRUE(got.work.decode);
}

// A grammar is of the process that has it; the others hear that there is one.
TEST(Turn, SaysThatACommandHasAGrammar) {
  const auto with_grammar = [](const std::string& request, bool has) {
    Command command = *sample_command(request);
    if (has) std::get<Sample>(command.op).grammar = std::make_shared<structured::Grammar>();
    return std::make_shared<const Command>(std::move(command));
  };
  Turn turn;
  turn.work.samples = {{with_grammar("free", false), 0, 1}, {with_grammar("fits", true), 0, 1}};
  TurnBook here, there, beyond;
  const Turn got = there.from_bytes(here.to_bytes(turn));
  const Turn passed_on = beyond.from_bytes(TurnBook().to_bytes(got));
  for (const Turn* each : {&got, &passed_on}) {
    ASSERT_EQ(each->work.samples.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const auto& sample = std::get<Sample>(each->work.samples[i].command->op);
      EXPECT_EQ(sample.grammar, nullptr);
      EXPECT_EQ(sample.is_constrained(), i == 1);
    }
  }
}

// As unloads are that nobody asked for: those of a session's end.
TEST(Turn, HasControlCommandsWithoutARequest) {
  TurnBook here, there;
  Turn turn;
  for (const char* const model : {"one", "two"}) {
    turn.work.control.push_back(
        std::make_shared<const Command>(Command{.model = {model}, .op = UnloadModel{}}));
  }
  const Turn got = there.from_bytes(here.to_bytes(turn));
  ASSERT_EQ(got.work.control.size(), 2u);
  EXPECT_EQ(got.work.control[0]->model.text, "one");
  EXPECT_EQ(got.work.control[1]->model.text, "two");
}

TEST(Turn, HasWhatCameOfAFile) {
  TurnBook here, there;
  const Turn got = there.from_bytes(here.to_bytes(
      {.kind = Turn::Kind::kFile,
       .base = BaseId{1},
       .file = {.what = 2, .name = "n", .failed = true, .code = 4, .fault = "full"}}));
  EXPECT_EQ(got.kind, Turn::Kind::kFile);
  EXPECT_EQ(got.base, BaseId{1});
  EXPECT_EQ(got.file.what, 2);
  EXPECT_EQ(got.file.name, "n");
  EXPECT_TRUE(got.file.failed);
  EXPECT_EQ(got.file.code, 4);
  EXPECT_EQ(got.file.fault, "full");
}

// Its data are sent with its first turn alone, until it has ended or was cancelled.
TEST(Turn, NamesACommandThatBothSidesHave) {
  constexpr size_t kTokens = 10000, kShort = 1000;
  TurnBook here, there;
  const auto pass = data_command("pass", kTokens);
  const auto send = [&](Turn turn) {
    const std::string bytes = here.to_bytes(turn);
    const Turn got = there.from_bytes(bytes);
    if (!got.work.rows.empty()) expect_same_command(got.work.rows.at(0).command, pass);
    return bytes.size();
  };
  Turn first, second;
  first.work.rows = {{pass, 0, 1}};
  second.work.rows = {{pass, 1, 2}};
  EXPECT_GT(send(first), kTokens);
  EXPECT_LT(send(second), kShort);
  for (TurnBook* side : {&here, &there}) side->forget_ended({{{"pass"}, Done{}}});
  EXPECT_GT(send(first), kTokens);
  Turn cancel;
  cancel.work.cancel = {{"pass"}};
  send(cancel);
  EXPECT_GT(send(first), kTokens);
}

}  // namespace
}  // namespace strata::api
