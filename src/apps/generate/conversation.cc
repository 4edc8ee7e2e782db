// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "report/format.h"
#include "text/answer_piece.h"
#include "text/harmony_reader.h"
#include "text/json_field.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

constexpr int64_t kMostFileBytes = int64_t{64} << 20;
constexpr int64_t kAnswerShare = 4;  // of the context, what is kept free for an answer at most

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

bool begins_with_system(const json::array& messages) {
  return !messages.empty() && messages.front().at("role") == "system";
}

// Without the system's.
size_t num_turns(const json::array& messages) {
  return messages.size() - (begins_with_system(messages) ? 1 : 0);
}

// One message of a file, which is to be of one of these roles.
json::object parse_message(const json::value& value, const std::string& where,
                           std::initializer_list<std::string_view> roles) {
  const json::object* message = value.if_object();
  const json::value* role = message != nullptr ? message->if_contains("role") : nullptr;
  const json::value* content = message != nullptr ? message->if_contains("content") : nullptr;
  if (role == nullptr || !role->is_string() || content == nullptr || !content->is_string() ||
      message->size() != 2) {
    fail(where + R"(: want {"role": TEXT, "content": TEXT} and nothing else)");
  }
  const std::string_view got = role->get_string();
  if (std::ranges::find(roles, got) == roles.end()) {
    fail(fmt::format("{}: role: got '{}', want {}{}", where, got, *roles.begin(),
                     roles.size() > 1 ? " or system" : ""));
  }
  return *message;
}

// Questions and answers in turn, behind a system turn where there is one.
json::array parse_messages(const json::array& list, const std::string& path) {
  json::array messages;
  for (const json::value& value : list) {
    const std::string where = fmt::format("{}: messages[{}]", path, messages.size());
    if (messages.empty()) {
      messages.push_back(parse_message(value, where, {"user", "system"}));
    } else {
      messages.push_back(num_turns(messages) % 2 == 0 ? parse_message(value, where, {"user"})
                                                      : parse_message(value, where, {"assistant"}));
    }
  }
  if (num_turns(messages) % 2 != 0)
    fail(path + ": messages: the last one is a question without its answer");
  return messages;
}

json::array read_conversation(const std::string& path) {
  const json::value file = text::parse_json(read_file(path, kMostFileBytes), path);
  const json::object* object = file.if_object();
  const json::value* list = object != nullptr ? object->if_contains("messages") : nullptr;
  if (list == nullptr || !list->is_array() || object->size() != 1)
    fail(path + R"(: want one conversation, {"messages": [...]}, as /save writes it)");
  return parse_messages(list->get_array(), path);
}

void drop_oldest_pair(json::array& messages) {
  const auto first = messages.begin() + (begins_with_system(messages) ? 1 : 0);
  messages.erase(first, first + 2);
}

void print_figures(const Generated& answer) {
  fmt::print(stderr, "[{} tokens, {} tokens/s, ended by {}]\n", answer.tokens.size(),
             report::format_count(static_cast<double>(answer.tokens.size()) / answer.seconds),
             answer.stop_reason);
}

void print_dropped(int64_t num_questions, int64_t context) {
  fmt::print(stderr, "[the context of {} tokens is full: the oldest {} dropped]\n", context,
             num_questions == 1
                 ? "question and its answer were"
                 : fmt::format("{} questions and their answers were", num_questions));
}

// The messages of an answer in channels, as its text comes.
class ChannelPrinter {
 public:
  explicit ChannelPrinter(AnswerPrinter& answer) : answer_(answer) {}

  void print(std::string_view text) {
    text::AnswerPiece piece;
    reader_.push(text, piece);
    print_piece_of_answer(piece);
  }
  // No more comes: what of it is the answer.
  std::string finish() {
    text::AnswerPiece piece;
    reader_.finish(piece);
    print_piece_of_answer(piece);
    close_bracket();
    return std::move(content_);
  }

 private:
  void print_piece_of_answer(const text::AnswerPiece& piece) {
    if (!piece.reasoning.empty()) {
      if (!is_thinking_) fmt::print(stderr, "[thinks: ");
      is_thinking_ = true;
      fmt::print(stderr, "{}", piece.reasoning);
    }
    for (const text::ToolCall& call : piece.calls) print_call(call);
    if (piece.content.empty()) return;
    close_bracket();
    answer_.print(piece.content);
    content_ += piece.content;
  }

  void print_call(const text::ToolCall& call) {
    if (!call.name.empty()) {
      close_bracket();
      fmt::print(stderr, "[calls {}: ", call.name);
      is_calling_ = true;
    }
    fmt::print(stderr, "{}", call.arguments);
  }

  void close_bracket() {
    if (is_thinking_ || is_calling_) fmt::print(stderr, "]\n");
    is_thinking_ = is_calling_ = false;
  }

  text::HarmonyReader reader_{/*reads_calls=*/true, /*most_calls=*/INT64_MAX};
  AnswerPrinter& answer_;
  std::string content_;
  bool is_thinking_ = false, is_calling_ = false;  // an open bracket is printed
};

// The turns are what they were, unless they are kept.
class Restore {
 public:
  explicit Restore(json::array& turns) : turns_(turns), before_(turns) {}
  ~Restore() {
    if (!is_kept_) turns_ = before_;
  }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;
  void keep() { is_kept_ = true; }

 private:
  json::array& turns_;
  const json::array before_;
  bool is_kept_ = false;
};

}  // namespace

Conversation::Conversation(const ConversationOptions& options)
    : options_(options), generator_(options.generation), system_(options.system) {
  if (const auto end = generator_.text().find_turn_end_token()) generator_.add_end_token(*end);
  const auto& chat = generator_.text().chat_template();
  has_channels_ = chat && text::writes_harmony(*chat);
  if (has_channels_) generator_.show_marks(text::harmony_marks());
  clear();
}

void Conversation::add(const char* role, const std::string& content) {
  messages_.push_back(json::object{{"role", role}, {"content", content}});
}

void Conversation::clear() {
  messages_.clear();
  if (!system_.empty()) add("system", system_);
}

void Conversation::set_system(const std::string& text) {
  if (begins_with_system(messages_)) messages_.erase(messages_.begin());
  system_ = text;
  if (!text.empty())
    messages_.insert(messages_.begin(), json::object{{"role", "system"}, {"content", text}});
}

size_t Conversation::num_questions() const { return (num_turns(messages_) + 1) / 2; }

std::vector<int32_t> Conversation::encode_messages(const json::array& messages,
                                                   bool to_answer) const {
  const std::string rendered = generator_.text().render(
      {.messages = json::serialize(messages), .add_generation_prompt = to_answer});
  return generator_.text().tokenizer().encode(rendered);
}

void Conversation::check_fits(int64_t num_tokens) const {
  if (num_tokens < generator_.context()) return;
  fail(fmt::format("prompt: {} tokens{}, the model's context is {}; shorten it{}", num_tokens,
                   begins_with_system(messages_) ? " with the system turn" : "",
                   generator_.context(), generator_.context_note()));
}

std::vector<int32_t> Conversation::fit_prompt() {
  const int64_t context = generator_.context();
  const int64_t wanted =
      std::max<int64_t>(1, std::min(generator_.max_tokens(), context / kAnswerShare));
  json::array kept = messages_;
  std::vector<int32_t> prompt = encode_messages(kept);
  int64_t num_dropped = 0;
  while (context - std::ssize(prompt) < wanted && num_turns(kept) > 1) {
    drop_oldest_pair(kept);
    prompt = encode_messages(kept);
    ++num_dropped;
  }
  check_fits(std::ssize(prompt));
  if (num_dropped > 0) {
    messages_ = std::move(kept);
    print_dropped(num_dropped, context);
  }
  return prompt;
}

Generated Conversation::stream_answer(FunctionRef<bool()> stop) {
  AnswerPrinter printer;
  ChannelPrinter channels(printer);
  const auto write = [&](std::string_view piece) {
    has_channels_ ? channels.print(piece) : printer.print(piece);
  };
  Generated out = generator_.generate(fit_prompt(), write, stop);
  if (has_channels_) out.text = channels.finish();
  printer.finish();
  ++num_answers_;
  num_tokens_ += std::ssize(out.tokens);
  seconds_ += out.seconds;
  print_figures(out);
  return out;
}

Generated Conversation::ask(const std::string& text, FunctionRef<bool()> stop) {
  Restore turns(messages_);
  add("user", text);
  Generated out = stream_answer(stop);
  if (out.text.empty() && out.stop_reason == kInterrupted) return out;
  add("assistant", out.text);
  turns.keep();
  return out;
}

bool Conversation::regenerate(FunctionRef<bool()> stop) {
  if (num_questions() == 0) return false;
  Restore turns(messages_);
  messages_.pop_back();
  const std::string question(messages_.back().at("content").as_string());
  messages_.pop_back();
  const Generated out = ask(question, stop);
  if (!out.text.empty() || out.stop_reason != kInterrupted) turns.keep();
  return true;
}

void Conversation::save(const std::string& path) const {
  if (num_questions() == 0) fail("nothing to save yet");
  if (file_exists(path)) static_cast<void>(read_conversation(path));
  write_file_atomic(path, json::serialize(json::object{{"messages", messages_}}) + "\n");
}

void Conversation::load(const std::string& path) {
  json::array messages = read_conversation(path);
  static_cast<void>(encode_messages(messages, /*to_answer=*/false));  // the template takes it
  messages_ = std::move(messages);
  system_ =
      begins_with_system(messages_) ? std::string(messages_.front().at("content").as_string()) : "";
}

std::string Conversation::stats_text() {
  const SamplingSettings& sampling = generator_.sampling();
  const size_t used =
      messages_.empty() ? 0 : encode_messages(messages_, /*to_answer=*/false).size();
  std::string out = fmt::format("questions: {}; {} of {} tokens of the context\n", num_questions(),
                                used, generator_.context());
  out += fmt::format(
      "answers: {}; {} tokens, {} tokens/s\n", num_answers_, num_tokens_,
      num_tokens_ == 0 ? "0" : report::format_count(static_cast<double>(num_tokens_) / seconds_));
  out += sampling_text(sampling.request);
  out += sampling.greedy() ? "\n" : fmt::format(", seed {}\n", generator_.seed().value_or(0));
  return out;
}

}  // namespace strata::apps
