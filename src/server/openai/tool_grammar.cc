// SPDX-License-Identifier: Apache-2.0
#include "server/openai/tool_grammar.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "server/http/message.h"
#include "server/openai/arguments_format.h"
#include "server/openai/json_text.h"
#include "text/harmony_reader.h"

namespace strata::server {
namespace {

namespace json = boost::json;

std::vector<std::string_view> marks_apart(const AnswerForm& form) {
  std::vector<std::string_view> marks = form.marks();
  std::erase_if(marks, [&](std::string_view mark) {
    return form.calls != nullptr && std::ranges::count(form.calls->in_text, mark) > 0;
  });
  return marks;
}

// Marks that are tokens come as those tokens, since no text of a grammar has them.
void add_text(const ServedText& of, const std::vector<std::string_view>& marks,
              std::string_view text, json::array& out) {
  while (!text.empty()) {
    size_t at = text.size();
    std::string_view mark;
    for (const std::string_view each : marks) {
      const size_t found = text.find(each);
      if (found < at && of.tokenizer.token_to_id(each)) {
        at = found;
        mark = each;
      }
    }
    if (at > 0) out.push_back(tags::text(std::string(text.substr(0, at))));
    if (!mark.empty())
      out.push_back(json::object{{"type", "token"}, {"token", *of.tokenizer.token_to_id(mark)}});
    text.remove_prefix(at + mark.size());
  }
}

std::string source_text(json::object format) {
  return json::serialize(json::object{{"type", "structural_tag"}, {"format", std::move(format)}});
}

// Builds formats of structural tags.
class TagWriter {
 public:
  TagWriter(const ServedText& text, const AnswerForm& form, const CallWriting& writing,
            std::vector<std::string>& warnings)
      : text_(text), marks_(marks_apart(form)), writing_(writing), warnings_(warnings) {}

  // All calls; without `skipped`, the text that they begin with.
  [[nodiscard]] json::object calls(const CallsGrammar& wanted, const std::string& skipped) const {
    json::array out;
    const std::string before = writing_.before;
    const bool is_in_before = before.starts_with(skipped);
    add_text(text_, marks_, is_in_before ? before.substr(skipped.size()) : "", out);
    out.push_back(one_call(wanted.tools, is_in_before ? "" : skipped));
    if (wanted.may_repeat) {
      json::array more;
      add_text(text_, marks_, writing_.between, more);
      more.push_back(one_call(wanted.tools, ""));
      out.push_back(json::object{{"type", "star"}, {"content", tags::sequence(std::move(more))}});
    }
    add_text(text_, marks_, writing_.after, out);
    return tags::sequence(std::move(out));
  }

 private:
  [[nodiscard]] json::object one_call(const std::vector<GrammarTool>& tools,
                                      const std::string& skipped) const {
    json::array calls;
    for (const GrammarTool& tool : tools) {
      std::string name = tool.name;
      if (writing_.quotes_name) {
        name = json_quoted(name);
        name = name.substr(1, name.size() - 2);
      }
      json::array parts;
      add_text(text_, marks_, (writing_.open + name + writing_.middle).substr(skipped.size()),
               parts);
      parts.push_back(arguments_format(writing_.arguments, tool, warnings_));
      add_text(text_, marks_, writing_.close, parts);
      calls.push_back(tags::sequence(std::move(parts)));
    }
    return tags::either(std::move(calls));
  }

  const ServedText& text_;
  const std::vector<std::string_view> marks_;
  const CallWriting& writing_;
  std::vector<std::string>& warnings_;
};

// An answer in channels (openai-harmony's docs/format.md).
class ChannelsWriter {
 public:
  explicit ChannelsWriter(const ServedText& text) : text_(text), marks_(text::harmony_marks()) {}

  // Messages before the last: of the channel `analysis`, and of `commentary` where such text may
  // come.
  [[nodiscard]] json::object messages_before(bool may_comment) const {
    json::array channels = {tags::text("analysis")};
    if (may_comment) channels.push_back(tags::text("commentary"));
    json::array one;
    add("<|channel|>", one);
    one.push_back(tags::either(std::move(channels)));
    add("<|message|>", one);
    one.push_back(json::object{{"type", "any_text"}});
    add("<|end|><|start|>assistant", one);
    return {{"type", "star"}, {"content", tags::sequence(std::move(one))}};
  }

  [[nodiscard]] json::object final_message(json::object content) const {
    json::array out;
    add("<|channel|>final", out);
    out.push_back(says_json());
    add("<|message|>", out);
    out.push_back(std::move(content));
    return tags::sequence(std::move(out));
  }

  // Its recipient stands before the channel, as templates have it, or behind.
  [[nodiscard]] json::object call(const GrammarTool& tool,
                                  std::vector<std::string>& warnings) const {
    const std::string recipient = " to=functions." + tool.name;
    json::array before, behind, out;
    add(recipient + "<|channel|>commentary", before);
    add("<|channel|>commentary" + recipient, behind);
    out.push_back(
        tags::either({tags::sequence(std::move(before)), tags::sequence(std::move(behind))}));
    out.push_back(says_json());
    add("<|message|>", out);
    out.push_back(arguments_format(ArgumentsForm::kJson, tool, warnings));
    return tags::sequence(std::move(out));
  }

 private:
  void add(const std::string& text, json::array& out) const { add_text(text_, marks_, text, out); }

  // " <|constrain|>json", " json" or nothing.
  [[nodiscard]] json::object says_json() const {
    json::array marked;
    add(" <|constrain|>json", marked);
    return {{"type", "optional"},
            {"content", tags::either({tags::sequence(std::move(marked)), tags::text(" json")})}};
  }

  const ServedText& text_;
  const std::vector<std::string_view> marks_;
};

// A source as a part of a structural tag.
json::object format_of(const structured::GrammarSource& source) {
  switch (source.kind) {
    case structured::GrammarKind::kJsonSchema:
      return tags::schema(parse_json_text(source.text).value());
    case structured::GrammarKind::kRegex:
      return {{"type", "regex"}, {"pattern", source.text}};
    case structured::GrammarKind::kEbnf:
      return {{"type", "grammar"}, {"grammar", source.text}};
    case structured::GrammarKind::kTags:
      return parse_json_text(source.text).value().at("format").get_object();
  }
  CHECK(false);
}

}  // namespace

structured::GrammarSource make_calls_source(const ServedText& text, const AnswerForm& form,
                                            const CallsGrammar& calls,
                                            std::vector<std::string>& warnings) {
  CHECK(form.calls != nullptr);
  const CallWriting writing = form.calls->writing(*text.chat);
  const TagWriter writer(text, form, writing, warnings);
  json::array formats;
  formats.push_back(writer.calls(calls, calls.begins_free ? writing.lead : ""));
  if (!calls.or_schema.empty())
    formats.push_back(tags::schema(parse_json_text(calls.or_schema).value()));
  structured::GrammarSource out = {.kind = structured::GrammarKind::kTags};
  out.text = source_text(tags::either(std::move(formats)));
  if (calls.begins_free) {
    out.lead_mark = writing.lead;
    out.may_end_in_lead = true;
  }
  return out;
}

structured::GrammarSource make_channels_source(const ServedText& text, const CallsGrammar& calls,
                                               const structured::GrammarSource* answer,
                                               std::vector<std::string>& warnings) {
  const ChannelsWriter writer(text);
  json::array last;
  if (answer != nullptr) last.push_back(writer.final_message(format_of(*answer)));
  if (calls.begins_free) last.push_back(writer.final_message({{"type", "any_text"}}));
  for (const GrammarTool& tool : calls.tools) last.push_back(writer.call(tool, warnings));
  json::array all;
  all.push_back(writer.messages_before(/*may_comment=*/calls.begins_free));
  all.push_back(tags::either(std::move(last)));
  return {.kind = structured::GrammarKind::kTags,
          .text = source_text(tags::sequence(std::move(all)))};
}

structured::Vocabulary make_answer_vocabulary(const ServedText& text, int64_t vocab_size) {
  AnswerForm form;
  if (text.chat) form = answer_form_of(*text.chat);
  const std::vector<std::string_view> none;
  return {
      text.tokenizer,
      vocab_size,
      {.apart = marks_apart(form), .in_text = form.calls == nullptr ? none : form.calls->in_text}};
}

}  // namespace strata::server
