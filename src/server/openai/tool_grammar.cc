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
    add_text(out, is_in_before ? before.substr(skipped.size()) : "");
    out.push_back(one_call(wanted.tools, is_in_before ? "" : skipped));
    if (wanted.may_repeat) {
      json::array more;
      add_text(more, writing_.between);
      more.push_back(one_call(wanted.tools, ""));
      out.push_back(json::object{{"type", "star"}, {"content", tags::sequence(std::move(more))}});
    }
    add_text(out, writing_.after);
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
      add_text(parts, (writing_.open + name + writing_.middle).substr(skipped.size()));
      parts.push_back(arguments_format(writing_.arguments, tool, warnings_));
      add_text(parts, writing_.close);
      calls.push_back(tags::sequence(std::move(parts)));
    }
    return tags::either(std::move(calls));
  }

  // Marks that are tokens come as those tokens, since no text of a grammar has them.
  void add_text(json::array& out, std::string_view text) const {
    while (!text.empty()) {
      size_t at = text.size();
      std::string_view mark;
      for (const std::string_view each : marks_) {
        const size_t found = text.find(each);
        if (found < at && text_.tokenizer.token_to_id(each)) {
          at = found;
          mark = each;
        }
      }
      if (at > 0)
        out.push_back(
            json::object{{"type", "const_string"}, {"value", std::string(text.substr(0, at))}});
      if (!mark.empty())
        out.push_back(
            json::object{{"type", "token"}, {"token", *text_.tokenizer.token_to_id(mark)}});
      text.remove_prefix(at + mark.size());
    }
  }

  const ServedText& text_;
  const std::vector<std::string_view> marks_;
  const CallWriting& writing_;
  std::vector<std::string>& warnings_;
};

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
  out.text = json::serialize(
      json::object{{"type", "structural_tag"}, {"format", tags::either(std::move(formats))}});
  if (calls.begins_free) {
    out.lead_mark = writing.lead;
    out.may_end_in_lead = true;
  }
  return out;
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
