// SPDX-License-Identifier: Apache-2.0
#include "server/openai/openai_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/openai/openai_house.h"
#include "tests/text/start_token.h"

namespace strata::server {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kHello = R"("messages":[{"role":"user","content":"Hello"}])";

TEST(OpenAiEndpoint, AnswersAChat) {
  OpenAiHouse house;
  const auto answer = house.chat(kHello + R"(,"seed":7,"max_tokens":9,"temperature":0.5)");
  ASSERT_EQ(answer->response.status, 0);
  const api::Sample& sample = house.sample();
  EXPECT_EQ(sample.seed, 7u);
  EXPECT_EQ(sample.max_tokens, 9);
  EXPECT_EQ(sample.temperature, 0.5f);
  EXPECT_TRUE(sample.scaled_logprobs);
  EXPECT_THAT(sample.stop, ElementsAre(4070, 4072, 4072));
  EXPECT_EQ(sample.prompt,
            house.tokens("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(*house.about, "tiny");
  house.settle(0, {"Good day."});
  ASSERT_EQ(answer->response.status, 200);
  const json::value got = answer->json();
  EXPECT_EQ(got.at("object"), "chat.completion");
  EXPECT_EQ(got.at("model"), "tiny");
  const json::value& choice = got.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("content"), "Good day.");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(got.at("usage").at("prompt_tokens"), std::ssize(sample.prompt));
  EXPECT_EQ(got.at("usage").at("completion_tokens"), std::ssize(house.tokens("Good day.")) + 1);
  EXPECT_EQ(house.house.service().futures().num_pending(), 0u);
}

TEST(OpenAiEndpoint, ChoicesHaveTheirIndexAndTheirReason) {
  OpenAiHouse house;
  const auto answer = house.chat(kHello + R"(,"n":2,"logprobs":true,"top_logprobs":1)");
  EXPECT_EQ(house.sample().num_samples, 2);
  EXPECT_EQ(house.sample().topk_sample_logprobs, 1);
  house.settle(0, {"a", "b"}, /*stopped=*/false);
  const json::value got = answer->json();
  ASSERT_EQ(got.at("choices").as_array().size(), 2u);
  EXPECT_EQ(got.at("choices").at(1).at("index"), 1);
  EXPECT_EQ(got.at("choices").at(1).at("finish_reason"), "length");
  const json::value& token = got.at("choices").at(1).at("logprobs").at("content").at(0);
  EXPECT_EQ(token.at("token"), "b");
  EXPECT_EQ(token.at("bytes").at(0), 'b');
  EXPECT_EQ(static_cast<float>(token.at("logprob").as_double()), -0.1f);
}

TEST(OpenAiEndpoint, ToolCallsAndReasoningAreTheirOwnFields) {
  OpenAiHouse house;
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  const auto answer = house.chat(kHello + tools);
  house.settle(0, {"<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                   "{\"a\": 1}}\n</tool_call>"});
  const json::value got = answer->json();
  const json::value& choice = got.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_TRUE(choice.at("message").at("content").is_null());
  EXPECT_EQ(choice.at("message").at("reasoning_content"), "hm");
  const json::value& call = choice.at("message").at("tool_calls").at(0);
  EXPECT_EQ(call.at("function").at("name"), "f");
  EXPECT_EQ(call.at("function").at("arguments"), R"({"a": 1})");
  EXPECT_TRUE(call.at("id").as_string().starts_with("call_"));
  // Without tools, or where none may be called, it is text.
  for (const std::string& more : {std::string(), tools + R"(,"tool_choice":"none")"}) {
    OpenAiHouse other;
    const auto plain = other.chat(kHello + more);
    other.settle(0, {"<tool_call>{}</tool_call>"});
    EXPECT_EQ(plain->json().at("choices").at(0).at("message").at("content"),
              "<tool_call>{}</tool_call>");
  }
}

TEST(OpenAiEndpoint, StopTextsNeverShow) {
  OpenAiHouse house;
  const auto answer = house.complete(R"("prompt":"x","stop":[" END"],"max_tokens":50)");
  EXPECT_THAT(house.sample().stop_texts, ElementsAre(" END"));
  house.settle(0, {"one END two"}, /*stopped=*/false);
  const json::value got = answer->json();
  EXPECT_EQ(got.at("choices").at(0).at("text"), "one");
  EXPECT_EQ(got.at("choices").at(0).at("finish_reason"), "stop");
}

TEST(OpenAiEndpoint, CompletesSeveralPrompts) {
  OpenAiHouse house;
  const auto answer = house.complete(R"("prompt":["ab",[5,6]],"n":2,"echo":true,"logprobs":1)");
  ASSERT_EQ(house.house.submitted.size(), 1u + 1u);
  EXPECT_EQ(house.sample(0).prompt, house.tokens("ab"));
  EXPECT_THAT(house.sample(1).prompt, ElementsAre(5, 6));
  EXPECT_EQ(house.sample(0).max_tokens, 16);
  EXPECT_TRUE(house.sample(0).prompt_logprobs);
  for (const size_t i : {size_t{1}, size_t{0}}) {
    api::SampleOutput output;
    const int64_t prompt = std::ssize(house.sample(i).prompt);
    output.prompt_logprobs.assign(static_cast<size_t>(prompt), -2.0f);
    output.prompt_logprobs[0] = api::kNoLogprob;
    for (int j = 0; j < 2; ++j) {
      output.sequences.push_back({.tokens = house.tokens(i == 0 ? "c" : "d"), .logprobs = {-1.0f}});
    }
    house.house.settle(house.command(i).request.text, std::move(output));
  }
  const json::value got = answer->json();
  EXPECT_EQ(got.at("object"), "text_completion");
  ASSERT_EQ(got.at("choices").as_array().size(), 4u);
  EXPECT_EQ(got.at("choices").at(1).at("text"), "abc");
  EXPECT_TRUE(got.at("choices").at(2).at("text").as_string().ends_with("d"));
  const json::value& logprobs = got.at("choices").at(2).at("logprobs");
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
  EXPECT_EQ(logprobs.at("token_logprobs").at(1).to_number<double>(), -2.0);
  EXPECT_EQ(logprobs.at("token_logprobs").at(2).to_number<double>(), -1.0);
  EXPECT_EQ(logprobs.at("top_logprobs").at(2).at("d").to_number<double>(), -1.0);
  EXPECT_EQ(logprobs.at("tokens").as_array().size(), 3u);
}

TEST(OpenAiEndpoint, APromptThatBeginsWithTheStartTokenHasItOnce) {
  ServedText text = bundled_text();
  text.tokenizer = text::load_with_start_token(bundled_model(), "<|im_start|>");
  OpenAiHouse house({}, text);
  const int32_t start = *text.tokenizer.token_to_id("<|im_start|>");
  const auto answer = house.complete(R"("prompt":["ab","<|im_start|>ab",[1,1,5]],"max_tokens":1)");
  ASSERT_EQ(house.house.submitted.size(), 3u) << answer->response.bytes();
  EXPECT_EQ(house.sample(0).prompt.front(), start);
  EXPECT_EQ(house.sample(1).prompt, house.sample(0).prompt);
  EXPECT_THAT(house.sample(2).prompt, ElementsAre(1, 1, 5)) << "ids stay as they are";
}

TEST(OpenAiEndpoint, MaxTokensOfZeroTellsThePromptAlone) {
  OpenAiHouse house;
  const auto answer = house.complete(R"("prompt":[7,8],"echo":true,"max_tokens":0,"logprobs":0)");
  EXPECT_EQ(house.sample().max_tokens, 1);
  api::SampleOutput output;
  output.prompt_logprobs = {api::kNoLogprob, -2.0f};
  output.sequences = {{.tokens = {9}, .logprobs = {-1.0f}}};
  house.house.settle(house.command().request.text, std::move(output));
  const json::value got = answer->json();
  EXPECT_EQ(got.at("choices").at(0).at("logprobs").at("tokens").as_array().size(), 2u);
  EXPECT_EQ(got.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(got.at("usage").at("completion_tokens"), 0);
}

struct Refusal {
  std::string more;
  const char* param;
  const char* words;
};

TEST(OpenAiEndpoint, RefusesByName) {
  const Refusal kRefusals[] = {
      {R"("messages":[])", "messages", "at least one"},
      {R"("messages":"x")", "messages", "wanted an array"},
      {R"("messages":[3])", "messages", "wanted an object"},
      {R"("messages":[{"role":"user"}])", "messages[0].content", "required"},
      {R"("messages":[{"role":"user","content":5}])", "messages[0].content", "a list of parts"},
      {R"("messages":[{"role":"robot","content":"x"}])", "messages[0].role", "robot"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "messages[0].content[0].type", "image_url"},
      {R"("messages":[{"role":"user","content":[{"type":"input_audio"}]}])",
       "messages[0].content[0].type", "input_audio"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"["}}]}])",
       "messages[0].tool_calls[0].function.arguments", "object"},
      {R"("temperature":-1)", "temperature", "0 or more"},
      {R"("temperature":"hot")", "temperature", "a string"},
      {R"("temperature":0.0001)", "temperature", "0.001"},
      {R"("top_p":0)", "top_p", "above 0"},
      {R"("n":0)", "n", "wanted 1"},
      {R"("n":true)", "n", "an integer"},
      {R"("stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"])", "stop",
       "17 strings, the limit is 16"},
      {R"("stop":[""])", "stop", "0 bytes"},
      {R"("stop":[1])", "stop", "a string"},
      {R"("max_tokens":0)", "max_tokens", "wanted 1"},
      {R"("max_tokens":100000)", "messages", "maximum context length is 600"},
      {R"("messages":[{"role":"user","content":")" + std::string(1 << 20, 'a') + R"("}])",
       "messages", "bytes, which are at least"},
      {R"("max_tokens":9223372036854775807)", "messages", "maximum context length is 600"},
      {R"("max_tokens":3,"max_completion_tokens":4)", "max_completion_tokens", "another"},
      {R"("logit_bias":{"x":1})", "logit_bias", "no token id"},
      {R"("logit_bias":{"99999":1})", "logit_bias", "no token id"},
      {R"("logit_bias":{"5":101})", "logit_bias.5", "101"},
      {R"("logit_bias":{"5":1,"05":1})", "logit_bias", "'05' is no token id"},
      {R"("logit_bias":{"+5":1})", "logit_bias", "no token id"},
      {R"("logit_bias":{"5\u0000":1})", "logit_bias", "'5\\0' is no token id"},
      {R"("top_logprobs":3)", "top_logprobs", "needs logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "0 to 20"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function"})",
       "tool_choice.function", "required"},
      {R"("tools":[{"type":"web"}])", "tools[0].type", "web"},
      {R"("functions":[])", "functions", "use tools"},
      {R"("modalities":["audio"])", "modalities", "text"},
      {R"("audio":{})", "audio", "not supported"},
      {R"("reasoning_effort":"high")", "reasoning_effort", "template"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "stream: true"},
      {R"("stream":true,"stream_options":{"include_obfuscation":true})",
       "stream_options.include_obfuscation", "true is not supported"},
      {R"("stream":true,"stream_options":{"include_obfuscation":0})",
       "stream_options.include_obfuscation", "wanted true or false"},
      {R"("user":5)", "user", "wanted a string"},
      {R"("safety_identifier":{})", "safety_identifier", "wanted a string"},
      {R"("prompt_cache_key":[])", "prompt_cache_key", "wanted a string"},
      {R"("metadata":"x")", "metadata", "wanted an object"},
      {R"("metadata":{"a":"b","c":1})", "metadata.c", "wanted a string"},
      {R"("frobnicate":1)", "frobnicate", "not supported"},
  };
  for (const Refusal& refusal : kRefusals) {
    OpenAiHouse house;
    const bool has_messages = refusal.more.starts_with("\"messages\"");
    const auto answer = house.chat(has_messages ? refusal.more : kHello + "," + refusal.more);
    ASSERT_EQ(answer->response.status, 400) << refusal.more << answer->response.bytes();
    EXPECT_EQ(answer->error("param"), refusal.param) << refusal.more;
    EXPECT_THAT(answer->error("message"), HasSubstr(refusal.words)) << refusal.more;
    EXPECT_EQ(answer->error("type"), "invalid_request_error");
    EXPECT_EQ(house.house.submitted.size(), 0u);
  }
}

TEST(OpenAiEndpoint, RefusesOddPromptsAndBodies) {
  for (const char* prompt : {"3", "[]", "[\"\"]", "[[]]", "[[1,\"x\"]]", "[-1]", "[1.5]", "{}",
                             "[4096]", "null", "[\"a\",7]"}) {
    OpenAiHouse house;
    const auto answer = house.complete(std::string(R"("prompt":)") + prompt);
    EXPECT_EQ(answer->response.status, 400) << prompt;
    EXPECT_EQ(answer->error("param"), "prompt") << prompt;
  }
  OpenAiHouse house;
  for (const std::string& body : {std::string("[]"), std::string("{"), std::string(5000, '['),
                                  std::string(R"({"model":3})"), std::string("{}")}) {
    const auto answer = house.call("POST", "/v1/chat/completions", body);
    EXPECT_EQ(answer->response.status, 400);
    EXPECT_FALSE(answer->error("message").empty());
  }
}

// Messages are whole, whatever a request's texts hold.
TEST(OpenAiEndpoint, ANulCutsNoMessage) {
  OpenAiHouse house;
  const auto missing = house.call("POST", "/v1/chat/completions", R"({"model":"ti\u0000ny"})");
  EXPECT_EQ(missing->response.status, 404);
  EXPECT_THAT(missing->error("message"), HasSubstr("`ti\\0ny` does not exist"));
  const auto role = house.chat(R"("messages":[{"role":"a\u0000b","content":"x"}])");
  EXPECT_THAT(role->error("message"), HasSubstr("'a\\0b', wanted system"));
}

TEST(OpenAiEndpoint, TakesWhatChangesNothing) {
  OpenAiHouse house;
  house.chat(kHello + R"(,"stream":true,"stream_options":{"include_obfuscation":false},"user":"u",)"
                      R"("metadata":{"a":"b"},"safety_identifier":"s","prompt_cache_key":"k")");
  EXPECT_EQ(house.house.submitted.size(), 1u);
}

TEST(OpenAiEndpoint, OtherRefusalsHaveItsFormToo) {
  OpenAiHouse house;
  EXPECT_EQ(house.call("GET", "/v1/nothing")->error("code"), "not_found");
  EXPECT_EQ(house.call("GET", "/v1/completions")->response.status, 405);
  house.house.admission = api::Admission::kFull;
  const auto full = house.chat(kHello);
  EXPECT_EQ(full->response.status, 429);
  EXPECT_EQ(full->error("type"), "rate_limit_error");
  Response other = json_response(404, R"({"detail":"x"})");
  rewrite_as_openai_error("/api/v1/x", other);
  EXPECT_EQ(other.body, R"({"detail":"x"})");
}

TEST(OpenAiEndpoint, AFailureOfOnePromptEndsTheOthers) {
  OpenAiHouse house;
  const auto answer = house.complete(R"("prompt":["a","b"])");
  house.house.settle(house.command(1).request.text,
                     api::Failure{api::FaultCategory::kUser, "no room"});
  EXPECT_EQ(answer->response.status, 400);
  EXPECT_EQ(answer->error("message"), "no room");
  house.settle(0, {"late"});
  EXPECT_EQ(house.house.cancelled.size(), 2u);
}

TEST(OpenAiEndpoint, AModelWithoutATemplateCompletesAlone) {
  ServedText text = bundled_text();
  text.chat.reset();
  OpenAiHouse house({}, text);
  EXPECT_EQ(house.chat(kHello)->error("code"), "unsupported_model");
  EXPECT_EQ(house.complete(R"("prompt":"x")")->response.status, 0);
}

TEST(OpenAiEndpoint, WhatARequestLeavesOutIsTheModels) {
  ServedText text = bundled_text();
  text.defaults.temperature = 0.25f;
  text.defaults.top_k = 20;
  OpenAiHouse house({}, text);
  house.chat(kHello);
  EXPECT_EQ(house.sample(0).temperature, 0.25f);
  EXPECT_EQ(house.sample(0).top_k, 20);
  EXPECT_EQ(house.sample(0).max_tokens, 600 - std::ssize(house.sample(0).prompt));
  house.chat(kHello +
             R"(,"temperature":1,"top_k":-1,"logit_bias":{"5":-100},"presence_penalty":2)");
  EXPECT_EQ(house.sample(1).temperature, 1.0f);
  EXPECT_EQ(house.sample(1).top_k, 0);
  EXPECT_EQ(house.sample(1).logit_bias.at(0).token, 5);
  EXPECT_EQ(house.sample(1).presence_penalty, 2.0f);
}

// What tells a choice takes memory before a token has come.
TEST(OpenAiEndpoint, ChoicesOfAStreamAreInABudget) {
  OpenAiHouse house;
  const Futures& futures = house.house.service().futures();
  const auto answer = house.complete(R"("prompt":"a","max_tokens":1,"n":100,"stream":true)");
  EXPECT_GE(futures.result_bytes(), 100 << 10);
  house.settle(0, std::vector<std::string>(100, "b"));
  EXPECT_EQ(answer->response.status, 200);
  EXPECT_EQ(futures.result_bytes(), 0);
}

// The prefix cache's hits: of a chat, of several prompts together, and in a stream's last chunk.
TEST(OpenAiEndpoint, UsageTellsWhatThePrefixCacheKnew) {
  const std::string streams = R"("stream":true,"stream_options":{"include_usage":true})";
  for (const bool stream : {false, true}) {
    for (const bool chat : {false, true}) {
      OpenAiHouse house;
      const std::string more = stream ? "," + streams : "";
      const auto answer =
          chat ? house.chat(kHello + more) : house.complete(R"("prompt":["ab","cd"])" + more);
      int64_t known = 0;
      for (size_t i = 0; i < (chat ? 1u : 2u); ++i) {
        api::SampleOutput output;
        output.sequences = {{.tokens = {9}, .logprobs = {-1.0f}}};
        output.cached_tokens = 24 + static_cast<int64_t>(i);
        known += output.cached_tokens;
        house.house.settle(house.command(i).request.text, std::move(output));
      }
      ASSERT_EQ(answer->response.status, 200);
      json::value got;
      if (stream) {
        const std::string text = answer->response.stream->pop_bytes(1 << 20);
        const size_t begin = text.rfind("data: {") + 6;
        got = json::parse(text.substr(begin, text.find("\n\n", begin) - begin));
      } else {
        got = answer->json();
      }
      EXPECT_EQ(got.at("usage").at("prompt_tokens_details").at("cached_tokens"), known)
          << stream << chat;
    }
  }
}

// The events of a stream as they were sent, without their ids.
std::vector<json::value> events_of(BodyStream& stream) {
  std::string text = stream.pop_bytes(1 << 20);
  stream.release_sent_bytes();
  std::vector<json::value> out;
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    EXPECT_TRUE(text.starts_with("data: "));
    const std::string data = text.substr(6, end - 6);
    out.push_back(data == "[DONE]" ? json::value(data) : json::parse(data));
    text.erase(0, end + 2);
  }
  return out;
}

TEST(OpenAiEndpoint, StreamsTokensAsTheyCome) {
  OpenAiHouse house;
  const auto answer =
      house.chat(kHello + R"(,"stream":true,"stream_options":{"include_usage":true},"stop":"xyz")");
  ASSERT_EQ(answer->response.status, 200);
  EXPECT_EQ(answer->response.content_type, "text/event-stream");
  BodyStream& stream = *answer->response.stream;
  EXPECT_TRUE(house.sample().streams_tokens);
  const api::RequestId request = house.command().request;
  std::string content;
  std::vector<json::value> last;
  const std::vector<int32_t> tokens = house.tokens("Grüße, xy!");
  for (size_t i = 0; i <= tokens.size(); ++i) {
    const bool ends = i == tokens.size();
    api::RowTokens told{.first = static_cast<int64_t>(i),
                        .tokens = {ends ? 4072 : tokens[i]},
                        .logprobs = {-1.0f},
                        .ended = ends,
                        .stopped = ends};
    house.house.service().post({api::Event(request, std::move(told))});
    for (const json::value& event : events_of(stream)) {
      EXPECT_EQ(event.at("object"), "chat.completion.chunk");
      EXPECT_TRUE(event.at("usage").is_null());
      const json::object& delta = event.at("choices").at(0).at("delta").as_object();
      if (delta.contains("content")) content += delta.at("content").as_string();
      last = {event};
    }
  }
  EXPECT_EQ(content, "Grüße, xy!");
  EXPECT_EQ(last.at(0).at("choices").at(0).at("finish_reason"), "stop");
  house.settle(0, {"Grüße, xy!"});
  last = events_of(stream);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].at("usage").at("completion_tokens"), std::ssize(tokens) + 1);
  EXPECT_EQ(last[0].at("choices").as_array().size(), 0u);
  EXPECT_EQ(last[1], "[DONE]");
  EXPECT_TRUE(stream.finished());
}

// Of each call first its name, then its arguments as the model writes them, each in an event.
TEST(OpenAiEndpoint, StreamsCallsInPieces) {
  OpenAiHouse house;
  const auto answer = house.chat(
      kHello + R"(,"stream":true,"tools":[{"type":"function","function":{"name":"f"}}])");
  const std::string text = R"(<tool_call>
{"name": "f", "arguments": {"city": "New York", "days": 3}}
</tool_call>
<tool_call>
{"name": "g", "arguments": {}}
</tool_call>)";
  std::vector<int32_t> tokens = house.tokens(text);
  tokens.push_back(4072);
  std::string names, arguments[2];
  int pieces = 0;
  std::string reason;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool ends = i + 1 == tokens.size();
    house.tell(0, {.first = static_cast<int64_t>(i),
                   .tokens = {tokens[i]},
                   .logprobs = {-1.0f},
                   .ended = ends,
                   .stopped = ends});
    for (const json::value& event : events_of(*answer->response.stream)) {
      const json::value& choice = event.at("choices").at(0);
      if (!choice.at("finish_reason").is_null()) reason = choice.at("finish_reason").as_string();
      const auto* calls = choice.at("delta").as_object().if_contains("tool_calls");
      if (calls == nullptr) continue;
      ASSERT_EQ(calls->as_array().size(), 1u);
      const json::object& call = calls->at(0).as_object();
      const json::object& function = call.at("function").as_object();
      EXPECT_EQ(call.contains("id"), function.contains("name"));
      if (function.contains("name")) {
        EXPECT_EQ(call.at("type"), "function");
        EXPECT_EQ(function.at("arguments"), "");
        names += function.at("name").as_string();
      }
      arguments[call.at("index").as_int64()] += function.at("arguments").as_string();
      ++pieces;
    }
  }
  EXPECT_EQ(names, "fg");
  EXPECT_EQ(arguments[0], R"({"city": "New York", "days": 3})");
  EXPECT_EQ(arguments[1], "{}");
  EXPECT_GT(pieces, 6);
  EXPECT_EQ(reason, "tool_calls");
}

TEST(OpenAiEndpoint, AClientThatHangsUpFreesItsRows) {
  OpenAiHouse house;
  const auto answer = house.complete(R"("prompt":["a","b"],"stream":true)");
  answer->response.stream->close();
  EXPECT_THAT(house.house.cancelled,
              ElementsAre(house.command(0).request.text, house.command(1).request.text));
  house.house.service().post(
      {api::Event(house.command(0).request, api::RowTokens{.tokens = {5}, .logprobs = {-1.0f}})});
  house.house.settle(house.command(0).request.text, api::Failure{});
}

TEST(OpenAiEndpoint, AFaultEndsAStream) {
  OpenAiHouse house;
  const auto answer = house.chat(kHello + R"(,"stream":true)");
  house.house.settle(house.command().request.text,
                     api::Failure{api::FaultCategory::kServer, "it broke"});
  const auto events = events_of(*answer->response.stream);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].at("error").at("message"), "it broke");
  EXPECT_EQ(events[1], "[DONE]");
  EXPECT_TRUE(answer->response.stream->finished());
}

}  // namespace
}  // namespace strata::server
