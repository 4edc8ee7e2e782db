// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's convert_hf_to_gguf.py (set_vocab) and gguf-py's vocab.py.
#include "checkpoint/gguf/vocabulary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/gguf/pre.h"
#include "text/json_field.h"

namespace strata {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr size_t kMaxName = 100;  // of a chat template

// tokenizer.ggml.token_type
enum TokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

[[noreturn]] void refuse(const ModelTexts& texts, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}, which a GGUF file cannot say",
                                                   texts.where("tokenizer.json"), what));
}

std::optional<json::object> read_object(const ModelTexts& texts, std::string_view name) {
  const std::optional<std::string> text = texts.find(name, kMaxBytes);
  if (!text) return std::nullopt;
  return text::parse_json_object(*text, texts.where(name));
}

const json::object* member_object(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr ? nullptr : value->if_object();
}

std::string member_text(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) return {};
  return std::string(value->as_string());
}

bool member_flag(const json::object& object, std::string_view name, bool fallback) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || !value->is_bool() ? fallback : value->as_bool();
}

// Every object of a list and of the lists inside ("normalizers", "pretokenizers", ...), in order.
void append_nested_steps(const json::value* value, std::string_view inner,
                         std::vector<const json::object*>& out) {
  const json::object* object = value == nullptr ? nullptr : value->if_object();
  if (object == nullptr) return;
  const json::value* list = object->if_contains(inner);
  if (list == nullptr || !list->is_array()) return out.push_back(object);
  for (const json::value& item : list->as_array()) append_nested_steps(&item, inner, out);
}

std::vector<const json::object*> steps_of(const json::object& tokenizer, std::string_view member,
                                          std::string_view inner) {
  std::vector<const json::object*> parts;
  append_nested_steps(tokenizer.if_contains(member), inner, parts);
  return parts;
}

// Ends of lines as patterns write them; some tokenizer.json have the characters themselves.
std::string escape_line_ends(const std::string& pattern) {
  std::string out;
  for (const char c : pattern) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += c;
    }
  }
  return out;
}

// Whether a split keeps its pieces and what is between them, each by itself: the only ones that
// llama.cpp has. Inverted and removed is the same of a pattern that takes every character, as those
// that end with blanks do.
bool isolates(const json::object& split, std::string_view pattern) {
  const std::string behavior = member_text(split, "behavior");
  return behavior == "Isolated" || (behavior == "Removed" && member_flag(split, "invert", false) &&
                                    pattern.ends_with(R"(|\s+)"));
}

// "a b", as files have them, or ["a", "b"]; an empty part: it is neither.
std::pair<std::string, std::string> parse_merge(const json::value& merge) {
  std::string left, right;
  if (const json::array* pair = merge.if_array(); pair != nullptr && pair->size() == 2) {
    if (const json::string* text = pair->at(0).if_string()) left = *text;
    if (const json::string* text = pair->at(1).if_string()) right = *text;
  } else if (merge.is_string()) {
    const std::string text(merge.as_string());
    const size_t space = text.find(' ', 1);
    left = text.substr(0, space);
    if (space != std::string::npos) right = text.substr(space + 1);
  }
  return {std::move(left), std::move(right)};
}

// What tokenizer.json says of how text is cut.
struct SplitRules {
  std::vector<std::string> splits;
  bool byte_level = false, byte_level_splits = false, prefix = false, nfc = false;
};

std::vector<std::string> splits_of(const GgufPre& row) {
  std::vector<std::string> splits;
  for (const std::string_view split : row.splits) {
    if (!split.empty()) splits.emplace_back(split);
  }
  return splits;
}

class VocabularyWriter {
 public:
  VocabularyWriter(const ModelTexts& texts, json::object tokenizer, int64_t num_rows,
                   std::string_view own_model, GgufHeader& header)
      : texts_(texts),
        tokenizer_(std::move(tokenizer)),
        num_rows_(num_rows),
        own_model_(own_model),
        header_(header) {
    const json::object* model = member_object(tokenizer_, "model");
    if (model == nullptr || member_text(*model, "type") != "BPE") {
      refuse(texts_, fmt::format("a tokenizer of type '{}'",
                                 model == nullptr ? "none" : member_text(*model, "type")));
    }
    model_ = model;
    config_ = read_object(texts_, "tokenizer_config.json").value_or(json::object());
    is_llama_ = member_flag(*model_, "byte_fallback", false);
    read_tokens();
    read_merges();
  }

  void write() {
    const bool has_own = is_llama_ && !own_model_.empty();
    header_.add_text("tokenizer.ggml.model", has_own ? own_model_ : is_llama_ ? "llama" : "gpt2");
    if (has_own) show_marks();
    if (is_llama_) {
      if (!has_own) header_.add_text("tokenizer.ggml.pre", "default");
      header_.add_boolean("tokenizer.ggml.add_space_prefix", adds_space_prefix());
    } else {
      write_pre_tokenizer();
    }
    header_.add_texts("tokenizer.ggml.tokens", tokens_);
    if (is_llama_) header_.add_numbers("tokenizer.ggml.scores", compute_scores());
    header_.add_integers("tokenizer.ggml.token_type", types_);
    if (!is_llama_ || has_own) header_.add_texts("tokenizer.ggml.merges", merges_);
    write_special_ids();
    write_templates();
  }

 private:
  // Marks of thoughts and calls are text to llama.cpp, whose parser of chats reads them.
  void show_marks() {
    constexpr std::string_view kMarks[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                           "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                           "<|\"|>"};
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const bool is_mark =
          std::find(std::begin(kMarks), std::end(kMarks), tokens_[id]) != std::end(kMarks);
      if (is_mark && types_[id] == kControl) types_[id] = kUserDefined;
    }
  }

  void check_id_is_free(int64_t id, const std::string& text) const {
    if (id < 0 || id >= num_rows_) {
      refuse(texts_, fmt::format("token '{}' has the id {}, the model's embedding {} rows", text,
                                 id, num_rows_));
    }
    const std::string& known = tokens_[static_cast<size_t>(id)];
    if (types_[static_cast<size_t>(id)] != kUnused && known != text)
      refuse(texts_, fmt::format("the id {} has two tokens, '{}' and '{}'", id, known, text));
  }

  void set_token(int64_t id, const std::string& text, int64_t type) {
    check_id_is_free(id, text);
    tokens_[static_cast<size_t>(id)] = text;
    types_[static_cast<size_t>(id)] = type;
    ids_[text] = id;
  }

  void read_tokens() {
    for (int64_t id = 0; id < num_rows_; ++id) tokens_.push_back(fmt::format("[PAD{}]", id));
    types_.assign(static_cast<size_t>(num_rows_), kUnused);
    const json::object* vocab = member_object(*model_, "vocab");
    if (vocab == nullptr) refuse(texts_, "no vocabulary");
    for (const auto& [text, id] : *vocab) {
      if (!id.is_int64()) refuse(texts_, "an id that is no whole number");
      set_token(id.as_int64(), text, type_of(text));
    }
    read_added_tokens();
  }

  void read_added_tokens() {
    const json::value* added = tokenizer_.if_contains("added_tokens");
    if (added == nullptr || !added->is_array()) return;
    const std::string unknown = member_text(*model_, "unk_token");
    for (const json::value& item : added->as_array()) {
      const json::object* token = item.if_object();
      const json::value* id = token == nullptr ? nullptr : token->if_contains("id");
      if (id == nullptr || !id->is_int64()) refuse(texts_, "an added token without a whole id");
      const std::string text = member_text(*token, "content");
      const bool special = member_flag(*token, "special", false);
      set_token(id->as_int64(), text,
                is_llama_ && text == unknown ? kUnknown
                : special                    ? kControl
                                             : kUserDefined);
    }
  }

  // "<0x0A>" of a vocabulary that falls back to bytes.
  [[nodiscard]] int64_t type_of(std::string_view text) const {
    const bool is_byte = is_llama_ && text.size() == 6 && text.starts_with("<0x") && text[5] == '>';
    return is_byte ? kByte : kNormal;
  }

  void read_merges() {
    const json::value* merges = model_->if_contains("merges");
    if (merges == nullptr || !merges->is_array()) refuse(texts_, "no merges");
    for (const json::value& merge : merges->as_array()) {
      const auto [left, right] = parse_merge(merge);
      if (left.empty() || right.empty()) refuse(texts_, "a merge of another form");
      merges_.push_back(fmt::format("{} {}", left, right));
      joined_.push_back(left + right);
    }
  }

  // llama.cpp joins the pair whose token has the best score: the first merge that makes it.
  [[nodiscard]] std::vector<double> compute_scores() const {
    std::vector<double> out(tokens_.size(), 0.0);
    const auto worst = -static_cast<double>(joined_.size() + 1);
    for (size_t id = 0; id < out.size(); ++id) {
      if (types_[id] == kNormal || types_[id] == kUserDefined) out[id] = worst;
    }
    for (size_t rank = joined_.size(); rank-- > 0;) {
      const auto found = ids_.find(joined_[rank]);
      if (found == ids_.end()) refuse(texts_, "a merge that makes no token");
      out[static_cast<size_t>(found->second)] = -static_cast<double>(rank + 1);
    }
    return out;
  }

  [[nodiscard]] bool adds_space_prefix() const {
    for (const json::object* part : steps_of(tokenizer_, "normalizer", "normalizers")) {
      if (member_text(*part, "type") == "Prepend") return true;
    }
    for (const json::object* part : steps_of(tokenizer_, "pre_tokenizer", "pretokenizers")) {
      if (member_text(*part, "type") != "Metaspace") continue;
      return member_text(*part, "prepend_scheme") != "never" &&
             member_flag(*part, "add_prefix_space", true);
    }
    return false;
  }

  [[nodiscard]] SplitRules read_split_rules() const {
    SplitRules out;
    for (const json::object* part : steps_of(tokenizer_, "normalizer", "normalizers")) {
      const std::string type = member_text(*part, "type");
      if (type != "NFC") refuse(texts_, fmt::format("a normalizer of type '{}'", type));
      out.nfc = true;
    }
    for (const json::object* part : steps_of(tokenizer_, "pre_tokenizer", "pretokenizers")) {
      add_split_rule(*part, out);
    }
    if (!out.byte_level) refuse(texts_, "a vocabulary of neither bytes nor SentencePiece");
    return out;
  }

  // Adds the rule of one pre-tokenizer.
  void add_split_rule(const json::object& part, SplitRules& out) const {
    const std::string type = member_text(part, "type");
    const json::object* pattern = member_object(part, "pattern");
    const std::string regex = pattern == nullptr ? "" : member_text(*pattern, "Regex");
    if (out.byte_level) {
      refuse(texts_, fmt::format("a pre-tokenizer of type '{}' behind ByteLevel", type));
    } else if (type == "ByteLevel") {
      out.byte_level = true;
      out.byte_level_splits = member_flag(part, "use_regex", true);
      out.prefix = member_flag(part, "add_prefix_space", true);
    } else if (type == "Digits" && member_flag(part, "individual_digits", false)) {
      out.splits.emplace_back(R"(\p{N})");
    } else if (type == "Split" && !regex.empty() && isolates(part, regex)) {
      out.splits.push_back(escape_line_ends(regex));
    } else if (type == "Split") {
      refuse(texts_, fmt::format("a pre-tokenizer of type 'Split' ({})",
                                 regex.empty() ? "String" : member_text(part, "behavior")));
    } else {
      refuse(texts_, fmt::format("a pre-tokenizer of type '{}'", type));
    }
  }

  void write_pre_tokenizer() {
    const SplitRules wanted = read_split_rules();
    const GgufPre* best = find_best_pre(wanted);
    if (best == nullptr) refuse_unknown_rules();
    header_.add_text("tokenizer.ggml.pre", best->name);
    if (wanted.prefix) header_.add_boolean("tokenizer.ggml.add_space_prefix", true);
  }

  [[noreturn]] void refuse_unknown_rules() const {
    std::vector<std::string_view> known;
    for (const GgufPre& row : gguf_pres()) known.push_back(row.name);
    refuse(texts_, fmt::format("rules of cutting text that llama.cpp has no name for (known are "
                               "{})",
                               fmt::join(known, ", ")));
  }

  // The first that fits whole, else the first that cuts alike; or null.
  [[nodiscard]] const GgufPre* find_best_pre(const SplitRules& wanted) const {
    const GgufPre* best = nullptr;
    int best_fit = 0;
    for (const GgufPre& row : gguf_pres()) {
      const int fit = match_score(row, wanted);
      if (fit <= best_fit) continue;
      best = &row;
      best_fit = fit;
    }
    return best;
  }

  // 0: it cuts otherwise.
  [[nodiscard]] int match_score(const GgufPre& row, const SplitRules& wanted) const {
    if (splits_of(row) != wanted.splits || row.byte_level_splits != wanted.byte_level_splits) {
      return 0;
    }
    const bool whole_tokens = member_flag(*model_, "ignore_merges", false);
    if (row.whole_tokens != whole_tokens && !merges_make_every_token()) return 0;
    return 1 + int{row.nfc == wanted.nfc} + int{row.whole_tokens == whole_tokens};
  }

  // Whether merges make every token of more than one byte: then it is the same whether a piece that
  // is a token is merged or taken whole.
  [[nodiscard]] bool merges_make_every_token() const {
    const std::unordered_set<std::string_view> made(joined_.begin(), joined_.end());
    for (size_t id = 0; id < tokens_.size(); ++id) {
      constexpr size_t kLongestByte = 2;  // a letter of the byte alphabet
      const bool is_byte = tokens_[id].size() <= kLongestByte;
      if (types_[id] == kNormal && !is_byte && !made.contains(tokens_[id])) return false;
    }
    return true;
  }

  // A special token's id by tokenizer_config.json, or -1.
  [[nodiscard]] int64_t special_id_in_tokenizer_config(std::string_view member) const {
    std::string text = member_text(config_, member);
    if (const json::object* token = member_object(config_, member)) {
      text = member_text(*token, "content");
    }
    const auto found = ids_.find(text);
    return text.empty() || found == ids_.end() ? -1 : found->second;
  }

  // Ids of a member of config.json or generation_config.json: one, or a list.
  [[nodiscard]] std::vector<int64_t> read_ids(std::string_view file,
                                              std::string_view member) const {
    const std::optional<json::object> object = read_object(texts_, file);
    const json::value* value = object ? object->if_contains(member) : nullptr;
    std::vector<int64_t> ids;
    if (value == nullptr) return ids;
    if (value->is_int64()) ids.push_back(value->as_int64());
    if (const json::array* list = value->if_array()) {
      for (const json::value& item : *list) {
        if (item.is_int64()) ids.push_back(item.as_int64());
      }
    }
    std::erase_if(ids, [&](int64_t id) { return id < 0 || id >= num_rows_; });
    return ids;
  }

  [[nodiscard]] int64_t find_special_id(std::string_view token, std::string_view member) const {
    if (const int64_t id = special_id_in_tokenizer_config(token); id >= 0) return id;
    const std::vector<int64_t> ids = read_ids("config.json", member);
    return ids.empty() ? -1 : ids.front();
  }

  void write_token_id(std::string_view name, int64_t id) {
    if (id >= 0) header_.add_integer(fmt::format("tokenizer.ggml.{}_token_id", name), id);
  }

  // The tokens that end a text: that of tokenizer_config.json first, each once.
  [[nodiscard]] std::vector<int64_t> read_end_ids() const {
    std::vector<int64_t> ends = {find_special_id("eos_token", "eos_token_id")};
    for (const std::string_view file : {"generation_config.json", "config.json"}) {
      for (const int64_t id : read_ids(file, "eos_token_id")) {
        if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
      }
    }
    std::erase(ends, -1);
    return ends;
  }

  void write_special_ids() {
    const int64_t bos = find_special_id("bos_token", "bos_token_id");
    write_token_id("bos", bos);
    const std::vector<int64_t> ends = read_end_ids();
    constexpr std::string_view kEnds[] = {"eos", "eot", "eom"};
    for (size_t i = 0; i < std::min(ends.size(), std::size(kEnds)); ++i)
      write_token_id(kEnds[i], ends[i]);
    write_token_id("unknown", special_id_in_tokenizer_config("unk_token"));
    write_token_id("padding", special_id_in_tokenizer_config("pad_token"));
    const auto [before, after] = has_special_before_and_after();
    header_.add_boolean("tokenizer.ggml.add_bos_token", before && bos >= 0);
    header_.add_boolean("tokenizer.ggml.add_eos_token", after);
  }

  // Whether a special token stands before a text, and behind.
  [[nodiscard]] std::pair<bool, bool> has_special_before_and_after() const {
    for (const json::object* part : steps_of(tokenizer_, "post_processor", "processors")) {
      const json::value* single = part->if_contains("single");
      if (single == nullptr || !single->is_array() || single->as_array().empty()) continue;
      const auto is_special = [](const json::value& item) {
        return item.is_object() && item.as_object().contains("SpecialToken");
      };
      return {is_special(single->as_array().front()), is_special(single->as_array().back())};
    }
    return {false, false};
  }

  void write_templates() {
    const std::optional<std::string> file = texts_.find("chat_template.jinja", kMaxBytes);
    const json::value* value = config_.if_contains("chat_template");
    if (file) return header_.add_text("tokenizer.chat_template", *file);
    if (value == nullptr) return;
    if (value->is_string()) return header_.add_text("tokenizer.chat_template", value->as_string());
    if (const json::array* list = value->if_array()) write_named_templates(*list);
  }

  void write_named_templates(const json::array& list) {
    std::vector<std::string> names;
    std::unordered_set<std::string> seen;
    for (const json::value& item : list) {
      const json::object* one = item.if_object();
      const std::string name = one == nullptr ? "" : member_text(*one, "name");
      if (name.empty() || name.size() > kMaxName || !seen.insert(name).second) {
        refuse(texts_, "a chat template without a name of its own");
      }
      const bool is_default = name == "default";
      header_.add_text(is_default ? "tokenizer.chat_template" : "tokenizer.chat_template." + name,
                       member_text(*one, "template"));
      if (!is_default) names.push_back(name);
    }
    if (!names.empty()) header_.add_texts("tokenizer.chat_templates", names);
  }

  const ModelTexts& texts_;
  json::object tokenizer_;
  const json::object* model_ = nullptr;
  json::object config_;
  int64_t num_rows_;
  std::string_view own_model_;
  GgufHeader& header_;
  bool is_llama_ = false;
  std::vector<std::string> tokens_, merges_, joined_;
  std::vector<int64_t> types_;
  std::unordered_map<std::string, int64_t> ids_;
};

}  // namespace

bool add_vocabulary(const ModelTexts& texts, int64_t num_rows, GgufHeader& header,
                    std::string_view own_model) {
  std::optional<json::object> tokenizer = read_object(texts, "tokenizer.json");
  if (!tokenizer) {
    header.add_text("tokenizer.ggml.model", "none");
    return false;
  }
  VocabularyWriter(texts, std::move(*tokenizer), num_rows, own_model, header).write();
  return true;
}

}  // namespace strata
