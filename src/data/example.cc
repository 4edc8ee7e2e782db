// SPDX-License-Identifier: Apache-2.0
#include "data/example.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "data/json_fields.h"
#include "data/own_form.h"
#include "data/training_marks.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

[[noreturn]] void fail(const std::string& what) { fail_record(what); }

bool is_in_any(const text::Span& span, const std::vector<Target>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](Target target) {
    return span.begin < target.end && span.end > target.begin;
  });
}

// Every token from index `forced` on is trained, whatever its bytes: the end token.
Example label_tokens(const text::Encoding& encoding, const std::vector<Target>& targets,
                     size_t forced) {
  Example example;
  const size_t num_tokens = encoding.ids.size();
  for (size_t t = 1; t < num_tokens; ++t) {
    const bool trained = t >= forced || is_in_any(encoding.spans[t], targets);
    example.tokens.push_back(encoding.ids[t - 1]);
    example.targets.push_back(encoding.ids[t]);
    example.weights.push_back(trained ? 1.0f : 0.0f);
    example.num_trained += trained ? 1 : 0;
  }
  return example;
}

// Unless an end token stands there already. The text has `num_bytes`.
void close_with_end_token(text::Encoding& encoding, size_t num_bytes, const EndTokens& end) {
  const bool closed = !encoding.ids.empty() &&
                      std::binary_search(end.stop.begin(), end.stop.end(), encoding.ids.back());
  if (closed) return;
  if (end.append < 0) {
    fail(
        "the model directory names no end token (eos_token in tokenizer_config.json, or "
        "eos_token_id)");
  }
  encoding.ids.push_back(end.append);
  encoding.spans.push_back({num_bytes, num_bytes});
}

// A text may begin with what the tokenizer adds, and then has it once.
void drop_doubled_start(const std::string& whole, text::Encoding& encoding,
                        const ExampleContext& context) {
  const auto doubled = static_cast<std::ptrdiff_t>(context.tokenizer.num_doubled_at_start(whole));
  if (doubled == 0) return;
  encoding.ids.erase(encoding.ids.begin(), encoding.ids.begin() + doubled);
  encoding.spans.erase(encoding.spans.begin(), encoding.spans.begin() + doubled);
  if (context.num_doubled_starts != nullptr) ++*context.num_doubled_starts;
}

// A plain text whose bytes from `prompt_bytes` on are trained, closed by the end token.
Example encode_text(const std::string& whole, size_t prompt_bytes, const ExampleContext& context) {
  text::Encoding encoding = context.tokenizer.encode_with_spans(whole, /*add_special=*/true);
  drop_doubled_start(whole, encoding, context);
  close_with_end_token(encoding, whole.size(), context.end_tokens);
  return label_tokens(encoding, {{prompt_bytes, whole.size()}}, encoding.ids.size() - 1);
}

// What came of a text.
struct Made {
  Example example = {};
  int64_t num_marked_out = 0;
  std::vector<std::string> not_found = {};
  bool has_read_clock = false;
};

Made encode_chat(const json::object& own, const OwnRecord& record, const ExampleContext& context) {
  const ReadConversation read = read_conversation(own, record, context.form);
  ChatText chat = render_answers(read, record.first_trained, context.train_on, context.render);
  const text::Encoding encoding =
      context.tokenizer.encode_with_spans(chat.rendered.text, /*add_special=*/false);
  return {.example = label_tokens(encoding, chat.targets, encoding.ids.size()),
          .num_marked_out = chat.num_marked_out,
          .not_found = std::move(chat.not_found),
          .has_read_clock = chat.rendered.has_read_clock};
}

// Encodes a record in one of our own forms.
Made encode_record(const json::object& own, const OwnRecord& record,
                   const ExampleContext& context) {
  Made made;
  if (own.contains("messages")) {
    made = encode_chat(own, record, context);
  } else if (own.contains("text")) {
    made.example = encode_text(require_string_field(own, "text"), 0, context);
  } else {
    const std::string prompt = require_string_field(own, "prompt");
    made.example =
        encode_text(prompt + require_string_field(own, "completion"), prompt.size(), context);
  }
  if (made.example.num_trained > 0 || made.num_marked_out > 0) return made;
  fail(made.not_found.empty() ? "nothing to train on: no token of the text is a target"
                              : made.not_found.front());
}

}  // namespace

ReadRecord read_record(std::string_view text, const ExampleContext& context,
                       std::vector<std::string>& ignored) {
  const json::value value = text::parse_json(text, "the record");
  if (!value.is_object()) fail(fmt::format("got {}, want an object", kind_of(value)));
  const OwnRecord own = to_own_form(value.get_object(), context.has_template, ignored);
  Made made = encode_record(own.object, own, context);
  ReadRecord record{.form = own.form,
                    .example = std::move(made.example),
                    .num_marked_out = made.num_marked_out,
                    .not_found = std::move(made.not_found),
                    .has_read_clock = made.has_read_clock};
  record.is_left_out =
      record.example.num_trained == 0 || !is_record_trained(text::Fields(value.get_object(), ""));
  if (own.rejected) {
    record.is_tie = own.is_tie;
    record.rejected = encode_record(*own.rejected, own, context).example;
    record.is_left_out |= record.rejected->num_trained == 0;
  }
  return record;
}

void refuse_pair(const ReadRecord& record) {
  if (!record.rejected) return;
  fail("a preference pair (chosen, rejected): --loss dpo and orpo train on these");
}

void require_pair(const ReadRecord& record) {
  if (record.rejected) return;
  fail(
      "no preference pair: --loss dpo and orpo want chosen and rejected, texts or messages, with "
      "or without a prompt");
}

Example make_example(std::string_view line, const ExampleContext& context,
                     std::vector<std::string>& ignored) {
  ReadRecord record = read_record(line, context, ignored);
  refuse_pair(record);
  if (record.is_left_out) fail("its marks say that nothing of it is trained on");
  return std::move(record.example);
}

}  // namespace strata::data
