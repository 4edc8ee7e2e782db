// SPDX-License-Identifier: Apache-2.0
// Answers as OpenAI's clients read them: whole, or as the events of a stream. One thread.
//   respond(json_response(200, whole_answer_json(head, *order, text, outputs)));
//   AnswerStream stream(head, order, text);  send(stream.make_token_events(0, row_tokens)); ...
//   send(stream.make_end_events())
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/event.h"
#include "server/http/message.h"
#include "server/openai/answer_order.h"
#include "server/openai/choice.h"
#include "server/openai/served_text.h"
#include "server/openai/token_json.h"

namespace strata::server {

struct AnswerHead {
  std::string id;
  int64_t created = 0;      // seconds since 1970, UTC
  std::string model;        // as the request called it
  std::string fingerprint;  // of build and weights
};

// `outputs`: of each of the order's samples.
std::string whole_answer_json(const AnswerHead& head, const AnswerOrder& order,
                              const ServedText& text,
                              const std::vector<api::SampleOutput>& outputs);

class AnswerStream {
 public:
  AnswerStream(AnswerHead head, std::shared_ptr<const AnswerOrder> order, const ServedText& text);

  // Events for what a row of a sample was given; "" where nothing is certain yet.
  std::string make_token_events(size_t sample, const api::RowTokens& told);
  // What a sample's last event says.
  void note_ended(const api::SampleOutput& output) { num_cached_ += output.cached_tokens; }
  // After all have ended.
  std::string make_end_events();
  static std::string fault_events(int status, std::string_view message);

 private:
  struct Row {
    explicit Row(Choice of) : choice(std::move(of)) {}
    Choice choice;
    CompletionLogprobs logprobs = {};
    int64_t num_calls = 0;  // told
    bool has_begun = false;
  };
  std::string chunk_event(const JsonArray& choices, const Json& usage);
  std::string choice_event(int64_t index, const Json& delta, const Json& logprobs,
                           const Json& reason);
  [[nodiscard]] Json finish_reason_json(const Row& row, bool ended) const;
  void keep_prompt_logprobs(size_t sample, const api::RowTokens& told);
  [[nodiscard]] std::vector<JsonObject> make_deltas(Row& row, const AnswerPiece& piece) const;
  std::string make_chat_events(int64_t index, Row& row, const AnswerPiece& piece,
                               const EmittedTokens& told, const Json& reason);
  std::string make_text_events(int64_t index, size_t sample, Row& row, const AnswerPiece& piece,
                               const EmittedTokens& told, const Json& reason);
  [[nodiscard]] Json take_logprobs(Row& row, const EmittedTokens& told) const;
  void add_prompt_logprobs(size_t sample, Row& row);

  const AnswerHead head_;
  const std::shared_ptr<const AnswerOrder> order_;
  const ServedText& text_;
  std::vector<Row> rows_;
  // What a sample says of its prompt, as long as a row of it has not begun.
  struct Prompt {
    std::vector<float> logprobs = {};
    api::TopkTable topk = {};
    int64_t left = 0;
  };
  std::vector<Prompt> prompts_;
  int64_t num_tokens_ = 0, num_cached_ = 0;
  bool has_warned_ = false;  // the first chunk does
};

}  // namespace strata::server
