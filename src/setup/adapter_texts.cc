// SPDX-License-Identifier: Apache-2.0
#include "setup/adapter_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "text/chat_template.h"
#include "text/json_field.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::apps {
namespace {

constexpr std::string_view kTokenizer = "tokenizer.json";
constexpr std::string_view kConfig = "tokenizer_config.json";
constexpr std::string_view kTemplate = "chat_template.jinja";
constexpr std::string_view kTemplateFiles[] = {kTemplate,
                                               "additional_chat_templates/tool_use.jinja"};
// Those with the names of special tokens, which go with a template; one may be in the first.
constexpr std::string_view kNameFiles[] = {kConfig, "special_tokens_map.json"};

// The template of a folder as it is written there: a file, or a field as JSON; nothing where there
// is neither.
std::optional<std::string> read_template_source(const ModelTexts& texts) {
  const int64_t most = text::ChatTemplate::kMaxFileBytes;
  if (auto file = texts.find(kTemplate, most)) return file;
  const auto config = texts.find(kConfig, most);
  if (!config) return std::nullopt;
  const boost::json::object fields = text::parse_json_object(*config, texts.where(kConfig));
  const boost::json::value* field = fields.if_contains("chat_template");
  if (field == nullptr || field->is_null()) return std::nullopt;
  return field->is_string() ? std::string(field->get_string()) : boost::json::serialize(*field);
}

OwnText compare(const std::optional<std::string>& base, const std::optional<std::string>& own) {
  if (!own) return OwnText::kNone;
  if (!base) return OwnText::kAlone;
  return *base == *own ? OwnText::kSame : OwnText::kOther;
}

[[noreturn]] void refuse(const ModelTexts& own, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}; this tokenizer is not that of the adapter's base: without the "
                          "file the base's is used",
                          own.where(kTokenizer), what));
}

std::string quoted(const std::optional<std::string>& token) {
  return token ? fmt::format("'{}'", *token) : "no token";
}

// How many tokens it has beyond the base's, all of them added ones with a row.
int64_t count_added_tokens(const ModelTexts& texts, const text::Tokenizer& base,
                           const text::Tokenizer& own, int64_t rows) {
  int64_t num_more = 0;
  for (int64_t i = 0; i < std::max(base.vocab_size(), own.vocab_size()); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::optional<std::string> theirs = base.id_to_token(id), ours = own.id_to_token(id);
    if (theirs == ours) continue;
    if (theirs || !own.is_added(id)) {
      refuse(texts,
             fmt::format("id {} is {}, and {} in the base's", id, quoted(ours), quoted(theirs)));
    }
    if (i >= rows) {
      refuse(texts, fmt::format("the added token {} has the id {}, and the base has rows for {}",
                                quoted(ours), id, rows));
    }
    ++num_more;
  }
  return num_more;
}

// Texts that tell rules of cutting and normalizing apart.
constexpr const char* kProbes[] = {"Hello, world!",
                                   " leading",
                                   "trailing ",
                                   "two  spaces   three",
                                   "12345 678,9",
                                   "a\n\n b\tc\r\n",
                                   "don't WON'T I'M",
                                   "x_y=f(1);",
                                   "na\u00efve caf\u00e9",
                                   "e\u0301",
                                   "\u7684\u4e16\u754c",
                                   "\U0001f600\U0001f468\u200d\U0001f469",
                                   "\ufb01 \u2460",
                                   " ",
                                   "\n",
                                   ""};

void check_equal_ids(const ModelTexts& texts, const text::Tokenizer& base,
                     const text::Tokenizer& own) {
  for (const char* probe : kProbes) {
    const std::vector<int32_t> theirs = base.encode(probe), ours = own.encode(probe);
    if (theirs == ours) continue;
    refuse(texts, fmt::format("'{}' becomes {}, and {} by the base's", probe, ours, theirs));
  }
}

// A copy of the base's own file needs no comparison.
void compare_tokenizers(const ModelTexts& base, const ModelTexts& own, AdapterTexts& out) {
  const int64_t most = text::Tokenizer::kMaxFileBytes;
  const auto theirs = base.find(kTokenizer, most), ours = own.find(kTokenizer, most);
  out.tokenizer = compare(theirs, ours);
  if (out.tokenizer != OwnText::kOther) return;
  const auto tokenizer = text::Tokenizer::parse(*ours, own.where(kTokenizer));
  const auto of_base = text::Tokenizer::parse(*theirs, base.where(kTokenizer));
  const int64_t rows = read_vocab_size(base).value_or(of_base.vocab_size());
  out.num_more_tokens = count_added_tokens(own, of_base, tokenizer, rows);
  check_equal_ids(own, of_base, tokenizer);
  if (out.num_more_tokens == 0) out.tokenizer = OwnText::kSame;
}

}  // namespace

AdapterTexts read_adapter_texts(const ModelTexts& base, const std::string& adapter) {
  const ModelTexts own(adapter);
  AdapterTexts out;
  out.chat_template = compare(read_template_source(base), read_template_source(own));
  compare_tokenizers(base, own, out);
  return out;
}

AdapterTexts read_adapter_texts_alone(const std::string& adapter) {
  const ModelTexts none("", [](std::string_view) { return std::nullopt; });
  return read_adapter_texts(none, adapter);
}

ModelTexts texts_with_adapter(const ModelTexts& base, const std::string& adapter,
                              const TemplateChoice& choice) {
  if (adapter.empty()) return base;
  const AdapterTexts has = read_adapter_texts(base, adapter);
  const bool takes_template = choice.file.empty() && has.has_own_template();
  const bool takes_tokenizer = has.has_own_tokenizer();
  if (!takes_template && !takes_tokenizer) return base;
  const ModelTexts own(adapter);
  // A template in a file of its own may stand without the names of tokens; then they are the
  // base's.
  const bool has_names = own.find(kConfig, text::ChatTemplate::kMaxFileBytes).has_value();
  const auto read = [=](std::string_view name) -> std::optional<std::string> {
    const bool is_template = std::ranges::find(kTemplateFiles, name) != std::end(kTemplateFiles);
    const bool is_name = std::ranges::find(kNameFiles, name) != std::end(kNameFiles);
    const bool is_own = (takes_template && (is_template || (is_name && has_names))) ||
                        (takes_tokenizer && name == kTokenizer);
    return (is_own ? own : base).find(name, INT64_MAX);
  };
  return {fmt::format("{} with {}", base.where(), adapter), read};
}

void copy_adapter_texts(const ModelTexts& base, const std::string& adapter,
                        const TemplateChoice& choice, const std::string& to_dir) {
  const ModelTexts texts = texts_with_adapter(base, adapter, choice);
  for (const std::string_view name : {kTokenizer, kConfig, kTemplate}) {
    const auto text = texts.find(name, INT64_MAX);
    if (text && text != base.find(name, INT64_MAX))
      write_file_atomic(fmt::format("{}/{}", to_dir, name), *text);
  }
  if (choice.names_file()) {
    write_file_atomic(fmt::format("{}/{}", to_dir, kTemplate),
                      read_file(choice.file, text::ChatTemplate::kMaxFileBytes));
  }
}

std::string template_choice_line(const ModelTexts& base, const std::string& adapter,
                                 const TemplateChoice& choice) {
  if (adapter.empty() || !choice.file.empty()) return {};
  if (read_adapter_texts(base, adapter).chat_template != OwnText::kOther) return {};
  return fmt::format(
      "{}: its own chat template is used, not its base's (--chat-template base takes that)",
      adapter);
}

}  // namespace strata::apps
