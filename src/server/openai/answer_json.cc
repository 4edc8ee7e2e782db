// SPDX-License-Identifier: Apache-2.0
#include "server/openai/answer_json.h"

#include <algorithm>
#include <utility>

#include "base/crypto.h"
#include "server/openai/openai_error.h"

namespace strata::server {
namespace {

constexpr const char* kAlphabet = "0123456789abcdefghijklmnopqrstuvwxyz";

std::string random_alphanumeric(size_t length) {
  std::string out;
  uint64_t bits = random_seed();
  for (size_t i = 0; i < length; ++i, bits /= 36) out += kAlphabet[bits % 36];
  return out;
}

// An id that no other call has, in the length that the model's template wants.
std::string new_call_id(const AnswerForm& form) {
  return form.id_length == 0 ? "call_" + random_id().substr(0, 24)
                             : random_alphanumeric(form.id_length);
}

JsonObject& add_call_fields(JsonObject& out, const AnswerForm& form, const ToolCall& call) {
  out.add("id", new_call_id(form)).add("type", "function");
  return out.add("function", JsonObject{{"name", call.name}, {"arguments", call.arguments}});
}

// What a delta says of a call: its beginning, or more of its arguments.
JsonObject calls_delta(JsonObject call) { return {{"tool_calls", JsonArray().add(call)}}; }
JsonObject begun_call(const AnswerForm& form, const std::string& name, int64_t index) {
  JsonObject out = {{"index", index}};
  return calls_delta(add_call_fields(out, form, {.name = name, .arguments = ""}));
}
JsonObject more_arguments(const std::string& arguments, int64_t index) {
  return calls_delta({{"index", index}, {"function", JsonObject{{"arguments", arguments}}}});
}

// What of a schema an answer does not keep; nothing where it keeps all.
void add_warnings(JsonObject& out, const AnswerOrder& order) {
  if (order.warnings.empty()) return;
  JsonArray warnings;
  for (const std::string& warning : order.warnings) warnings.add(warning);
  out.add("warnings", warnings);
}

JsonObject answer_head_json(const AnswerHead& head, const char* kind) {
  return {{"id", head.id},
          {"object", kind},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

struct Counts {
  int64_t tokens = 0, cached = 0;
};

Json usage_json(const AnswerOrder& order, const Counts& counts) {
  const int64_t prompt = order.prompt_tokens;
  const int64_t answer = order.drops_answer ? 0 : counts.tokens;
  return JsonObject{{"prompt_tokens", prompt},
                    {"completion_tokens", answer},
                    {"total_tokens", prompt + answer},
                    {"prompt_tokens_details", JsonObject{{"cached_tokens", counts.cached}}}};
}

JsonArray calls_json(const AnswerForm& form, const std::vector<ToolCall>& calls) {
  JsonArray out;
  for (const ToolCall& call : calls) {
    JsonObject item;
    out.add(add_call_fields(item, form, call));
  }
  return out;
}

Json chat_message_json(const AnswerOrder& order, const AnswerPiece& piece) {
  JsonObject message = {{"role", "assistant"}};
  const bool is_call = !piece.calls.empty() && piece.content.empty();
  message.add("content", is_call ? Json(nullptr) : Json(piece.content)).add("refusal", nullptr);
  if (!piece.reasoning.empty()) message.add("reasoning_content", piece.reasoning);
  if (piece.calls.empty()) return message;
  return message.add("tool_calls", calls_json(order.form, piece.calls));
}

Json chat_logprobs_json(const ServedText& text, const EmittedTokens& told) {
  return JsonObject{{"content", chat_logprob_items(text.tokenizer, told)}, {"refusal", nullptr}};
}

Json chat_choice_json(int64_t index, const AnswerOrder& order, const ServedText& text,
                      const api::SampledSequence& sequence) {
  Choice choice(order, order.samples.front(), text);
  const AnswerPiece piece = choice.decode_tokens(sequence.tokens, /*ended=*/true, sequence.stopped);
  Json logprobs = nullptr;
  if (order.telling.logprobs)
    logprobs = chat_logprobs_json(text, {sequence.tokens, sequence.logprobs, sequence.topk});
  return JsonObject{{"index", index},
                    {"message", chat_message_json(order, piece)},
                    {"logprobs", logprobs},
                    {"finish_reason", choice.finish_reason()}};
}

std::string prompt_text(const ServedText& text, const api::Sample& sample) {
  return text.tokenizer.decode(sample.prompt, /*skip_special=*/true);
}

Json text_logprobs_json(const AnswerOrder& order, const api::Sample& sample, const ServedText& text,
                        const api::SampleOutput& output, const api::SampledSequence& sequence) {
  if (!order.telling.logprobs) return nullptr;
  CompletionLogprobs told;
  if (order.echo)
    told.add_tokens(text.tokenizer, {sample.prompt, output.prompt_logprobs, output.prompt_topk});
  if (!order.drops_answer)
    told.add_tokens(text.tokenizer, {sequence.tokens, sequence.logprobs, sequence.topk});
  return told.take_json();
}

Json text_choice_json(int64_t index, const AnswerOrder& order, const api::Sample& sample,
                      const ServedText& text, const api::SampleOutput& output,
                      const api::SampledSequence& sequence) {
  Choice choice(order, sample, text);
  std::string shown = order.echo ? prompt_text(text, sample) : "";
  if (!order.drops_answer) {
    shown += choice.decode_tokens(sequence.tokens, /*ended=*/true, sequence.stopped).content;
  }
  return JsonObject{{"index", index},
                    {"text", shown},
                    {"logprobs", text_logprobs_json(order, sample, text, output, sequence)},
                    {"finish_reason", order.drops_answer ? "length" : choice.finish_reason()}};
}

std::string sse(const std::string& text) { return "data: " + text + "\n\n"; }

}  // namespace

std::string whole_answer_json(const AnswerHead& head, const AnswerOrder& order,
                              const ServedText& text,
                              const std::vector<api::SampleOutput>& outputs) {
  JsonArray choices;
  Counts counts;
  int64_t index = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    counts.cached += outputs[i].cached_tokens;
    for (const api::SampledSequence& sequence : outputs[i].sequences) {
      counts.tokens += std::ssize(sequence.tokens);
      choices.add(order.is_chat ? chat_choice_json(index, order, text, sequence)
                                : text_choice_json(index, order, order.samples[i], text, outputs[i],
                                                   sequence));
      ++index;
    }
  }
  JsonObject out = answer_head_json(head, order.is_chat ? "chat.completion" : "text_completion");
  out.add("choices", choices).add("usage", usage_json(order, counts));
  add_warnings(out, order);
  return out.text();
}

AnswerStream::AnswerStream(AnswerHead head, std::shared_ptr<const AnswerOrder> order,
                           const ServedText& text)
    : head_(std::move(head)), order_(std::move(order)), text_(text) {
  for (const api::Sample& sample : order_->samples) {
    for (int64_t i = 0; i < sample.num_samples; ++i)
      rows_.emplace_back(Choice(*order_, sample, text));
    prompts_.push_back({.left = sample.num_samples});
  }
}

std::string AnswerStream::chunk_event(const JsonArray& choices, const Json& usage) {
  JsonObject out =
      answer_head_json(head_, order_->is_chat ? "chat.completion.chunk" : "text_completion");
  out.add("choices", choices);
  if (order_->telling.stream_usage) out.add("usage", usage);
  if (!std::exchange(has_warned_, true)) add_warnings(out, *order_);
  return sse(out.text());
}

std::string AnswerStream::choice_event(int64_t index, const Json& delta, const Json& logprobs,
                                       const Json& reason) {
  return chunk_event(JsonArray().add(JsonObject{{"index", index},
                                                {order_->is_chat ? "delta" : "text", delta},
                                                {"logprobs", logprobs},
                                                {"finish_reason", reason}}),
                     nullptr);
}

std::string AnswerStream::make_token_events(size_t sample, const api::RowTokens& told) {
  const int64_t index = static_cast<int64_t>(sample) * order_->choices_each() + told.row;
  Row& row = rows_[static_cast<size_t>(index)];
  num_tokens_ += std::ssize(told.tokens);
  if (!told.prompt_logprobs.empty()) keep_prompt_logprobs(sample, told);
  const AnswerPiece piece = order_->drops_answer
                                ? AnswerPiece()
                                : row.choice.decode_tokens(told.tokens, told.ended, told.stopped);
  const Json reason = finish_reason_json(row, told.ended);
  const EmittedTokens tokens = {told.tokens, told.logprobs, told.topk};
  return order_->is_chat ? make_chat_events(index, row, piece, tokens, reason)
                         : make_text_events(index, sample, row, piece, tokens, reason);
}

// Null until it has ended.
Json AnswerStream::finish_reason_json(const Row& row, bool ended) const {
  if (!ended) return nullptr;
  return order_->drops_answer ? "length" : row.choice.finish_reason();
}

void AnswerStream::keep_prompt_logprobs(size_t sample, const api::RowTokens& told) {
  prompts_[sample].logprobs = told.prompt_logprobs;
  prompts_[sample].topk = told.prompt_topk;
}

// One delta for reasoning and one for content; for each call one with its name, and one for what is
// new of its arguments. Calls are numbered in their row.
std::vector<JsonObject> AnswerStream::make_deltas(Row& row, const AnswerPiece& piece) const {
  std::vector<JsonObject> out;
  JsonObject text;
  if (!piece.reasoning.empty()) text.add("reasoning_content", piece.reasoning);
  if (!piece.content.empty()) text.add("content", piece.content);
  if (!piece.reasoning.empty() || !piece.content.empty()) out.push_back(std::move(text));
  for (const ToolCall& call : piece.calls) {
    if (!call.name.empty()) out.push_back(begun_call(order_->form, call.name, row.num_calls++));
    if (!call.arguments.empty()) out.push_back(more_arguments(call.arguments, row.num_calls - 1));
  }
  return out;
}

// Events for what is new; the role comes before them, the reason after them, each in one of its
// own.
std::string AnswerStream::make_chat_events(int64_t index, Row& row, const AnswerPiece& piece,
                                           const EmittedTokens& told, const Json& reason) {
  std::string out;
  if (!std::exchange(row.has_begun, true)) {
    out +=
        choice_event(index, JsonObject{{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
  }
  std::vector<JsonObject> deltas = make_deltas(row, piece);
  const bool tells = order_->telling.logprobs && !told.tokens.empty();
  if (deltas.empty() && tells) deltas.emplace_back();
  for (size_t i = 0; i < deltas.size(); ++i) {
    const Json logprobs = tells && i == 0 ? chat_logprobs_json(text_, told) : Json(nullptr);
    out += choice_event(index, deltas[i], logprobs, nullptr);
  }
  if (row.choice.has_ended()) out += choice_event(index, JsonObject(), nullptr, reason);
  return out;
}

std::string AnswerStream::make_text_events(int64_t index, size_t sample, Row& row,
                                           const AnswerPiece& piece, const EmittedTokens& told,
                                           const Json& reason) {
  std::string shown;
  if (!std::exchange(row.has_begun, true) && order_->echo) {
    add_prompt_logprobs(sample, row);
    shown = prompt_text(text_, order_->samples[sample]);
  }
  shown += piece.content;
  const Json logprobs = take_logprobs(row, told);
  if (shown.empty() && reason.text() == "null" && !order_->telling.logprobs) return "";
  return choice_event(index, Json(shown), logprobs, reason);
}

// The log-probabilities of these tokens, behind those that the row has not told yet; null where
// nobody asked.
Json AnswerStream::take_logprobs(Row& row, const EmittedTokens& told) const {
  if (!order_->telling.logprobs) return nullptr;
  if (!order_->drops_answer) row.logprobs.add_tokens(text_.tokenizer, told);
  return row.logprobs.take_json();
}

// They stand before the row's own; the last row that needs them frees them.
void AnswerStream::add_prompt_logprobs(size_t sample, Row& row) {
  const std::vector<int32_t>& ids = order_->samples[sample].prompt;
  Prompt& prompt = prompts_[sample];
  if (order_->telling.logprobs && prompt.logprobs.size() == ids.size())
    row.logprobs.add_tokens(text_.tokenizer, {ids, prompt.logprobs, prompt.topk});
  if (--prompt.left == 0) prompt = Prompt();
}

std::string AnswerStream::make_end_events() {
  std::string out;
  if (order_->telling.stream_usage)
    out = chunk_event(JsonArray(), usage_json(*order_, {num_tokens_, num_cached_}));
  return out + sse("[DONE]");
}

std::string AnswerStream::fault_events(int status, std::string_view message) {
  return sse(openai_error_text(status, message)) + sse("[DONE]");
}

}  // namespace strata::server
