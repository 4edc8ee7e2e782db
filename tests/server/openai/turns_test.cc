// SPDX-License-Identifier: Apache-2.0
// What takes long: many prompts of one request, and the JSON of long streams. Nobody waits for it,
// and what waits for it is counted.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/body_stream.h"
#include "tests/base/accounts.h"
#include "tests/server/openai/openai_house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<OpenAiHouse> with_threads(const ServiceOptions& options = ServiceOptions()) {
  return std::make_unique<OpenAiHouse>(std::vector<UsageLimit>(), bundled_text(), options, true);
}

std::string prompts(int count) {
  std::string out = R"("max_tokens":1,"prompt":[)";
  for (int i = 0; i < count; ++i) out += (i > 0 ? ",[7]" : "[7]");
  return out + "]";
}

TEST(OpenAiTurns, ManyPromptsAreSubmittedInTurns) {
  const auto house = with_threads();
  const auto answer = house->complete(prompts(100));
  EXPECT_EQ(house->house.submitted.size(), 32u);
  size_t before = 32;
  while (OpenAiHouse::run(house->turns)) {
    EXPECT_LE(house->house.submitted.size(), before + 32);
    before = house->house.submitted.size();
  }
  ASSERT_EQ(before, 100u);
  for (size_t i = 0; i < 100; ++i) house->settle(i, {"x"});
  house->run_all();
  EXPECT_EQ(answer->response.status, 200);
  EXPECT_EQ(answer->json().at("choices").as_array().size(), 100u);
}

TEST(OpenAiTurns, AClientThatLeavesInTheMidstTakesNothingMore) {
  for (const char* more : {"", R"(,"stream":true)"}) {
    const auto house = with_threads();
    const auto answer = house->complete(prompts(100) + more);
    (*house->hang_up)();
    EXPECT_EQ(house->house.cancelled.size(), 32u);
    house->settle(0, {"came before that"});
    house->run_all();
    for (size_t i = 1; i < 32; ++i)
      house->house.settle(house->command(i).request.text, api::Failure{});
    EXPECT_EQ(house->house.submitted.size(), 32u) << more;
    EXPECT_EQ(answer->response.status, 400) << more;
    EXPECT_EQ(answer->count, 1) << more;
  }
}

// Also one that fails, or is refused, before the last was submitted.
TEST(OpenAiTurns, AFaultInTheMidstIsTheAnswer) {
  for (const char* more : {"", R"(,"stream":true)"}) {
    const auto failed = with_threads();
    const auto answer = failed->complete(prompts(100) + more);
    failed->house.settle(failed->command(3).request.text,
                         api::Failure{api::FaultCategory::kUser, "no room"});
    failed->run_all();
    EXPECT_EQ(answer->error("message"), "no room") << more;
    EXPECT_EQ(failed->house.submitted.size(), 32u);
    const auto refused = with_threads();
    const auto other = refused->complete(prompts(100) + more);
    refused->house.admission = api::Admission::kFull;
    refused->run_all();
    EXPECT_EQ(other->response.status, 429) << more;
    EXPECT_EQ(refused->house.cancelled.size(), 32u);
    EXPECT_EQ(answer->count + other->count, 2);
  }
}

const std::string kLong = R"("messages":[{"role":"user","content":"Hello"}],"stream":true,)"
                          R"("logprobs":true,"top_logprobs":2)";

api::RowTokens row_token(int64_t place, int32_t token) {
  return {.first = place,
          .tokens = {token},
          .logprobs = {-1.0f},
          .topk = {.ids = {1, 2}, .logprobs = {-1.0f, -2.0f}, .k = 2}};
}

TEST(OpenAiTurns, LongStreamsAreMadeElsewhere) {
  const auto house = with_threads();
  const auto answer = house->chat(kLong);
  BodyStream& stream = *answer->response.stream;
  const std::vector<int32_t> tokens = house->tokens("one two three");
  for (size_t i = 0; i < tokens.size(); ++i)
    house->tell(0, row_token(static_cast<int64_t>(i), tokens[i]));
  EXPECT_EQ(stream.pop_bytes(1 << 20), "");
  EXPECT_EQ(house->elsewhere.size(), 1u);  // one at a time, in order
  OpenAiHouse::run(house->elsewhere);
  house->settle(0, {"one two three"});
  EXPECT_EQ(stream.pop_bytes(1 << 20), "");
  house->run_all();
  EXPECT_TRUE(house->turns.empty());
  const std::string all = stream.pop_bytes(1 << 20);
  EXPECT_THAT(all, HasSubstr(R"("content":"one")"));
  EXPECT_LT(all.find(R"("content":"one")"), all.find(R"("content":" three")"));
  EXPECT_TRUE(all.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(stream.finished());
}

TEST(OpenAiTurns, AFailureStandsBehindWhatWasTold) {
  const auto house = with_threads();
  const auto answer = house->chat(kLong);
  house->tell(0, row_token(0, house->tokens("one")[0]));
  house->house.settle(house->command().request.text,
                      api::Failure{api::FaultCategory::kServer, "it broke"});
  house->run_all();
  const std::string all = answer->response.stream->pop_bytes(1 << 20);
  EXPECT_LT(all.find(R"("content":"one")"), all.find("it broke"));
  EXPECT_TRUE(answer->response.stream->finished());
}

// In the first event of each choice, as a whole answer has it; a prompt of one sample is told once.
TEST(OpenAiTurns, AStreamEchoesLogprobs) {
  for (const char* most : {"1", "0"}) {
    const auto house = with_threads();
    const auto answer = house->complete(R"("prompt":[7,8],"echo":true,"logprobs":1,"n":2,)"
                                        R"("stream":true,"max_tokens":)" +
                                        std::string(most));
    EXPECT_TRUE(house->sample().prompt_logprobs);
    for (int64_t row = 0; row < 2; ++row) {
      api::RowTokens told = {.row = row,
                             .tokens = {9},
                             .logprobs = {-1.0f},
                             .topk = {.ids = {3}, .logprobs = {-0.5f}, .k = 1},
                             .ended = true};
      if (row == 0) {
        told.prompt_logprobs = {api::kNoLogprob, -2.0f};
        told.prompt_topk = {.ids = {0, 4}, .logprobs = {api::kNoTopk, -1.5f}, .k = 1};
      }
      house->tell(0, std::move(told));
    }
    house->run_all();
    std::string all = answer->response.stream->pop_bytes(1 << 20);
    for (int row = 0; row < 2; ++row) {
      const size_t end = all.find("\n\n");
      const auto choice = boost::json::parse(all.substr(6, end - 6)).at("choices").at(0);
      all.erase(0, end + 2);
      EXPECT_EQ(choice.at("index"), row);
      const auto& logprobs = choice.at("logprobs").at("token_logprobs").as_array();
      ASSERT_EQ(logprobs.size(), *most == '1' ? 3u : 2u);
      EXPECT_TRUE(logprobs[0].is_null());
      EXPECT_EQ(logprobs[1].to_number<double>(), -2.0);
      EXPECT_EQ(choice.at("logprobs").at("top_logprobs").at(1).as_object().size(), 2u);
      EXPECT_EQ(choice.at("logprobs").at("text_offset").as_array().size(), logprobs.size());
    }
  }
}

TEST(OpenAiTurns, AStreamEchoesNoMoreThanItsFirstEventsHold) {
  const auto house = with_threads();
  const auto answer = house->complete(R"("prompt":)" + std::string("[") + [] {
    std::string ids = "1";
    for (int i = 0; i < 400; ++i) ids += ",2";
    return ids;
  }() + R"(],"echo":true,"logprobs":20,"stream":true)");
  EXPECT_EQ(answer->error("param"), "echo");
  EXPECT_THAT(answer->error("message"), HasSubstr("8421 of them, the limit is 8192"));
}

// Tokens for which nobody makes JSON in time end the stream, and no memory.
TEST(OpenAiTurns, WhatWaitsForItIsBounded) {
  const auto house = with_threads();
  const auto answer = house->chat(kLong);
  Charge charge = strata::testing::accounts_with(Use::kResponse, 64 << 10).open("alice");
  ASSERT_TRUE(charge.hold(Use::kResponse, answer->response.stream->bytes_to_hold()));
  answer->response.stream->count_at(charge);
  for (int64_t i = 0; i < 10'000 && !answer->response.stream->closed(); ++i)
    house->tell(0, row_token(i, 9));
  EXPECT_TRUE(answer->response.stream->closed());
  EXPECT_LE(charge.held(Use::kResponse), 64 << 10);
  house->run_all();
  answer->response.stream->close();
  EXPECT_EQ(charge.held(Use::kResponse), 0);
  EXPECT_EQ(house->house.cancelled.size(), 1u);
}

TEST(OpenAiTurns, AnswersThatAreGatheredCountUntilTheyAreSent) {
  const auto house = with_threads();
  const auto answer = house->complete(R"("prompt":["a","b"])");
  house->settle(1, {"four words of text"});
  EXPECT_GT(house->house.service().futures().result_bytes(), 8);
  house->settle(0, {"more"});
  house->run_all();
  EXPECT_EQ(answer->response.status, 200);
  EXPECT_EQ(house->house.service().futures().result_bytes(), 0);
}

// Before anything is sampled: what was sampled always has space.
TEST(OpenAiTurns, AnAnswerForWhichThereIsNoSpaceIsRefusedBeforeItsSamples) {
  const std::string two = R"("prompt":["a","b"],"max_tokens":10,"logprobs":0)";
  ServiceOptions options;
  options.futures.accounts.of(Use::kResult) = SharedLimit(10'000);
  const auto house = with_threads(options);
  const auto never = house->complete(R"("prompt":"a","max_tokens":500,"logprobs":0)");
  EXPECT_EQ(never->response.status, 400);
  EXPECT_THAT(never->error("message"), HasSubstr("--max-result-bytes"));
  EXPECT_EQ(house->house.submitted.size(), 0u);
  const auto first = house->complete(two);
  EXPECT_EQ(house->house.submitted.size(), 2u);
  const auto second = house->complete(two);
  EXPECT_EQ(second->response.status, 429);
  EXPECT_THAT(second->error("message"), HasSubstr("--max-result-bytes"));
  house->settle(0, {"one"});
  house->settle(1, {"two"});
  house->run_all();
  EXPECT_EQ(first->response.status, 200);
  EXPECT_EQ(first->count, 1);
  EXPECT_EQ(house->house.service().futures().result_bytes(), 0);
  EXPECT_EQ(house->complete(two)->response.status, 0) << "the next one waits for its samples";
}

}  // namespace
}  // namespace strata::server
