// SPDX-License-Identifier: Apache-2.0
// Sources: llama.cpp's llama-vocab.cpp (names of `pre`, defaults of bos and eos), the
// tokenizer.json files of the models (patterns), transformers' convert_slow_tokenizer.py
// (generate_merges).
#include "checkpoint/gguf/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "checkpoint/gguf/pre.h"
#include "checkpoint/gguf/sampling.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace strata {
namespace {

constexpr size_t kMaxTokens = 4'000'000;
constexpr std::string_view kMark = "\u2581";  // a space, in SentencePiece's vocabularies

// tokenizer.ggml.token_type
enum TokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

std::string token_id_key(std::string_view name) {
  return fmt::format("tokenizer.ggml.{}_token_id", name);
}

class TokenizerWriter {
 public:
  explicit TokenizerWriter(const GgufKeys& keys)
      : keys_(keys),
        tokens_(keys.texts("tokenizer.ggml.tokens")),
        types_(keys.integers("tokenizer.ggml.token_type")) {
    if (tokens_.size() > kMaxTokens) {
      keys_.fail("tokenizer.ggml.tokens",
                 fmt::format("{} tokens, at most {} are accepted", tokens_.size(), kMaxTokens));
    }
    if (!types_.empty() && types_.size() != tokens_.size()) {
      keys_.fail("tokenizer.ggml.token_type",
                 fmt::format("{} types of {} tokens", types_.size(), tokens_.size()));
    }
    index_tokens();
  }

  std::string build_tokenizer_json() {
    const std::string model = keys_.text("tokenizer.ggml.model");
    const bool is_gpt2 = model == "gpt2";
    has_merges_ = model != "llama";
    if (!is_gpt2 && model != "llama" && model != "gemma4") refuse_model(model);
    std::string out = R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": )";
    out += added_tokens_json();
    out += is_gpt2 ? gpt2_pipeline_members() : llama_pipeline_members();
    out += R"(, "model": {"type": "BPE", "vocab": )" + vocab_json();
    out += is_gpt2 ? gpt2_model_members() : llama_model_members();
    return out + "}}";
  }

 private:
  [[noreturn]] void refuse_model(const std::string& model) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: tokenizer.ggml.model: got '{}', supported are gpt2 (byte-level "
                            "BPE), llama (SentencePiece) and gemma4 (its merges)",
                            keys_.where(), model));
  }
  void index_tokens() {
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!text::is_valid_utf8(tokens_[id])) {
        keys_.fail("tokenizer.ggml.tokens", fmt::format("token {} is not UTF-8", id));
      }
      if (!is_filler(id)) ids_.emplace(tokens_[id], id);
    }
  }
  [[nodiscard]] int64_t type_of(size_t id) const { return types_.empty() ? kNormal : types_[id]; }
  // Ids without a token: no text is ever theirs.
  [[nodiscard]] bool is_filler(size_t id) const {
    return tokens_[id].empty() ||
           (type_of(id) == kUnused && tokens_[id] == fmt::format("[PAD{}]", id));
  }
  // The first of tokens of equal text.
  [[nodiscard]] bool is_first_of_its_text(size_t id) const {
    const auto found = ids_.find(tokens_[id]);
    return found != ids_.end() && found->second == id;
  }

  [[nodiscard]] std::string added_tokens_json() const {
    std::string out = "[";
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const int64_t type = type_of(id);
      if ((type != kControl && type != kUserDefined && type != kUnknown) ||
          !is_first_of_its_text(id))
        continue;
      out += fmt::format(R"({}{{"id": {}, "content": {}, "single_word": false, "lstrip": false, )"
                         R"("rstrip": false, "normalized": false, "special": {}}})",
                         out.size() == 1 ? "" : ",\n", id, text::json_quote(tokens_[id]),
                         type != kUserDefined);
    }
    return out + "]";
  }

  [[nodiscard]] std::string vocab_json() const {
    std::string out = "{";
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!is_first_of_its_text(id)) continue;
      out +=
          fmt::format("{}{}: {}", out.size() == 1 ? "" : ",\n", text::json_quote(tokens_[id]), id);
    }
    return out + "}";
  }

  [[nodiscard]] int64_t special_token_id(std::string_view name) const {
    const int64_t id = gguf_token_id(keys_, name);
    if (id >= std::ssize(tokens_)) {
      keys_.fail(token_id_key(name),
                 fmt::format("got {}, the vocabulary has {}", id, tokens_.size()));
    }
    return id;
  }

  // The id of "bos" or "eos", where texts get it: by its key, without one by the fallback.
  [[nodiscard]] std::optional<int64_t> id_added_to_texts(std::string_view name,
                                                         bool fallback) const {
    const int64_t id = special_token_id(name);
    if (!keys_.boolean(fmt::format("tokenizer.ggml.add_{}_token", name), fallback) || id < 0) {
      return std::nullopt;
    }
    return id;
  }

  [[nodiscard]] std::string template_item(int64_t id) const {
    return fmt::format(R"({{"SpecialToken": {{"id": {}, "type_id": 0}}}})",
                       text::json_quote(tokens_[static_cast<size_t>(id)]));
  }
  [[nodiscard]] std::string special_token_entry(int64_t id) const {
    const std::string token = text::json_quote(tokens_[static_cast<size_t>(id)]);
    return fmt::format(R"({}: {{"id": {}, "ids": [{}], "tokens": [{}]}})", token, token, id, token);
  }

  // What is put around a text.
  [[nodiscard]] std::string post_processor_json(bool bos_default) const {
    const std::optional<int64_t> bos = id_added_to_texts("bos", bos_default);
    const std::optional<int64_t> eos = id_added_to_texts("eos", false);
    if (!bos && !eos) return "null";
    std::vector<std::string> single = {R"({"Sequence": {"id": "A", "type_id": 0}})"};
    std::vector<std::string> special;
    if (bos) {
      single.insert(single.begin(), template_item(*bos));
      special.push_back(special_token_entry(*bos));
    }
    if (eos) {
      single.push_back(template_item(*eos));
      if (eos != bos) special.push_back(special_token_entry(*eos));
    }
    return fmt::format(
        R"({{"type": "TemplateProcessing", "single": [{}], "pair": [], "special_tokens": {{{}}}}})",
        fmt::join(single, ", "), fmt::join(special, ", "));
  }

  [[nodiscard]] const GgufPre& require_pre_tokenizer_row() const {
    constexpr std::string_view kKey = "tokenizer.ggml.pre";
    const std::string name = keys_.text(kKey, "");
    std::vector<std::string_view> known;
    for (const GgufPre& row : gguf_pres()) {
      if (row.name == name) return row;
      known.push_back(row.name);
    }
    const bool none = name.empty() || name == "default";
    constexpr size_t kMostShown = 60;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: {}: got {}, known are {}{}", keys_.where(), kKey,
                    none ? "none" : "'" + name.substr(0, kMostShown) + "'", fmt::join(known, ", "),
                    none ? "; such a file was converted without its tokenizer's rules: "
                           "convert the model again"
                         : ""));
  }

  [[nodiscard]] std::string gpt2_pipeline_members() const {
    const GgufPre& row = require_pre_tokenizer_row();
    std::string steps;
    for (const std::string_view split : row.splits) {
      if (split.empty()) continue;
      steps += fmt::format(
          R"({{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated", "invert": false}}, )",
          text::json_quote(split));
    }
    return fmt::format(
        R"(, "normalizer": {}, "pre_tokenizer": {{"type": "Sequence", "pretokenizers": [{}{{"type": )"
        R"("ByteLevel", "add_prefix_space": {}, "trim_offsets": true, "use_regex": {}}}]}}, )"
        R"("post_processor": {}, "decoder": {{"type": "ByteLevel", "add_prefix_space": true, )"
        R"("trim_offsets": true, "use_regex": true}})",
        row.nfc ? R"({"type": "NFC"})" : "null", steps,
        keys_.boolean("tokenizer.ggml.add_space_prefix", false), row.byte_level_splits,
        post_processor_json(row.adds_bos));
  }

  [[nodiscard]] std::string quoted_merge(std::span<const std::string> merges, size_t i) const {
    if (!text::is_valid_utf8(merges[i])) {
      keys_.fail("tokenizer.ggml.merges", fmt::format("merge {} is not UTF-8", i));
    }
    return text::json_quote(merges[i]);
  }

  // The list of the file's own merges, without its brackets.
  [[nodiscard]] std::string stored_merges() const {
    const std::span<const std::string> merges = keys_.texts("tokenizer.ggml.merges");
    if (merges.empty()) keys_.fail("tokenizer.ggml.merges", "got nothing, want the merges");
    std::string out;
    for (size_t i = 0; i < merges.size(); ++i) {
      out += (i == 0 ? "" : ",\n") + quoted_merge(merges, i);
    }
    return out;
  }

  [[nodiscard]] std::string gpt2_model_members() const {
    return fmt::format(
        R"(, "unk_token": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": {}, "merges": [{}])",
        require_pre_tokenizer_row().whole_tokens, stored_merges());
  }

  [[nodiscard]] std::string llama_pipeline_members() const {
    const bool prefix = keys_.boolean("tokenizer.ggml.add_space_prefix", !has_merges_);
    const std::string space = fmt::format(
        R"({{"type": "Replace", "pattern": {{"String": " "}}, "content": "{}"}})", kMark);
    const std::string normalizer =
        prefix ? fmt::format(
                     R"({{"type": "Sequence", "normalizers": [{{"type": "Prepend", "prepend": )"
                     R"("{}"}}, {}]}})",
                     kMark, space)
               : space;
    return fmt::format(
        R"(, "normalizer": {}, "pre_tokenizer": null, "post_processor": {}, "decoder": {{"type": )"
        R"("Sequence", "decoders": [{{"type": "Replace", "pattern": {{"String": "{}"}}, "content": )"
        R"(" "}}, {{"type": "ByteFallback"}}, {{"type": "Fuse"}}{}]}})",
        normalizer, post_processor_json(true), kMark,
        prefix ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "");
  }

  struct Pair {
    size_t token;
    uint32_t cut;          // bytes of the left part
    uint32_t left, right;  // characters
  };

  [[nodiscard]] std::span<const double> checked_scores() const {
    const std::span<const double> scores = keys_.numbers("tokenizer.ggml.scores");
    if (scores.size() != tokens_.size()) {
      keys_.fail("tokenizer.ggml.scores",
                 fmt::format("{} scores of {} tokens", scores.size(), tokens_.size()));
    }
    if (std::any_of(scores.begin(), scores.end(), [](double s) { return std::isnan(s); })) {
      keys_.fail("tokenizer.ggml.scores", "a score is no number; damaged?");
    }
    return scores;
  }

  // Every way to join two tokens to a third, the best score first.
  [[nodiscard]] std::vector<Pair> pairs_by_score(std::span<const double> scores) const {
    std::vector<Pair> pairs;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (joins(id) && is_first_of_its_text(id)) append_merges_of(id, pairs);
    }
    std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) {
      if (scores[a.token] != scores[b.token]) return scores[a.token] > scores[b.token];
      return std::pair(a.left, a.right) > std::pair(b.left, b.right);
    });
    return pairs;
  }

  [[nodiscard]] bool has_byte_tokens() const {
    return std::find(types_.begin(), types_.end(), kByte) != types_.end();
  }

  // Merges by the scores of what they make.
  [[nodiscard]] std::string merges_by_score() const {
    std::string out;
    for (const Pair& pair : pairs_by_score(checked_scores())) {
      const std::string_view token = tokens_[pair.token];
      out += fmt::format("{}[{}, {}]", out.empty() ? "" : ",\n",
                         text::json_quote(token.substr(0, pair.cut)),
                         text::json_quote(token.substr(pair.cut)));
    }
    return out;
  }

  [[nodiscard]] std::string llama_model_members() const {
    const int64_t unknown = special_token_id("unknown");
    return fmt::format(
        R"(, "unk_token": {}, "fuse_unk": true, "byte_fallback": {}, "ignore_merges": false, "merges": [{}])",
        unknown < 0 ? "null" : text::json_quote(tokens_[static_cast<size_t>(unknown)]),
        has_byte_tokens(), has_merges_ ? stored_merges() : merges_by_score());
  }

  [[nodiscard]] bool joins(size_t id) const {
    return type_of(id) == kNormal || type_of(id) == kUserDefined || type_of(id) == kUnused;
  }

  // Whether the byte is inside a character of UTF-8.
  static bool is_inside_character(std::string_view text, size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  }

  // Whether both parts are tokens that are joined to others.
  [[nodiscard]] bool parts_join(std::string_view token, size_t cut) const {
    const auto a = ids_.find(std::string(token.substr(0, cut)));
    const auto b = ids_.find(std::string(token.substr(cut)));
    return a != ids_.end() && b != ids_.end() && joins(a->second) && joins(b->second);
  }

  // By the ids of their parts.
  void append_merges_of(size_t id, std::vector<Pair>& pairs) const {
    constexpr size_t kMostPairs = 20'000'000;
    constexpr size_t kLongest = 256;  // of what is joined from parts
    const std::string_view token = tokens_[id];
    if (token.size() > kLongest) return;
    const size_t begin = pairs.size();
    const auto characters = static_cast<uint32_t>(text::count_code_points(token));
    uint32_t left = 0;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if (is_inside_character(token, cut)) continue;
      ++left;
      if (!parts_join(token, cut)) continue;
      pairs.push_back({id, static_cast<uint32_t>(cut), left, characters - left});
    }
    if (pairs.size() > kMostPairs) {
      keys_.fail("tokenizer.ggml.tokens", "too many ways to join tokens");
    }
    std::sort(pairs.begin() + static_cast<std::ptrdiff_t>(begin), pairs.end(),
              [&](const Pair& x, const Pair& y) { return parts(x) < parts(y); });
  }
  [[nodiscard]] std::pair<size_t, size_t> parts(const Pair& pair) const {
    const std::string& token = tokens_[pair.token];
    return {ids_.at(token.substr(0, pair.cut)), ids_.at(token.substr(pair.cut))};
  }

  const GgufKeys& keys_;
  std::span<const std::string> tokens_;
  std::span<const int64_t> types_;
  std::unordered_map<std::string, size_t> ids_;
  bool has_merges_ = false;  // in an order of their own, not by the scores of what they make
};

std::string quoted(const GgufKeys& keys, std::string_view key, const std::string& text) {
  if (!text::is_valid_utf8(text)) keys.fail(key, "is not UTF-8");
  return text::json_quote(text);
}

// Its name is behind this in a key.
constexpr std::string_view kTemplate = "tokenizer.chat_template";

// The items of a list of named templates.
std::string chat_templates_json(const GgufKeys& keys) {
  std::string templates;
  for (const auto& [key, value] : keys.all()) {
    const bool is_default = key == kTemplate;
    const std::string prefix = std::string(kTemplate) + ".";
    if (!is_default && !key.starts_with(prefix)) continue;
    templates += fmt::format("{}{{\"name\": {}, \"template\": {}}}", templates.empty() ? "" : ", ",
                             quoted(keys, key, is_default ? "default" : key.substr(prefix.size())),
                             quoted(keys, key, keys.text(key)));
  }
  return templates;
}

std::optional<std::string> find_quoted_special_token(const GgufKeys& keys, std::string_view name) {
  const std::span<const std::string> tokens = keys.texts("tokenizer.ggml.tokens");
  const std::string key = token_id_key(name);
  const int64_t id = gguf_token_id(keys, name);
  if (id < 0) return std::nullopt;
  if (id >= std::ssize(tokens)) {
    keys.fail(key, fmt::format("got {}, the vocabulary has {}", id, tokens.size()));
  }
  return quoted(keys, key, tokens[static_cast<size_t>(id)]);
}

std::string tokenizer_config_json(const GgufKeys& keys) {
  std::string out = R"({"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {})";
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"bos", "bos_token"},
                                                                      {"eos", "eos_token"},
                                                                      {"unknown", "unk_token"},
                                                                      {"padding", "pad_token"}};
  for (const auto& [name, member] : kNames) {
    const std::optional<std::string> token = find_quoted_special_token(keys, name);
    if (token) out += fmt::format(",\n \"{}\": {}", member, *token);
  }
  const std::string templates = chat_templates_json(keys);
  if (!templates.empty()) out += fmt::format(",\n \"chat_template\": [{}]", templates);
  return out + "}\n";
}

std::optional<std::string> generation_config_json(const GgufKeys& keys) {
  const std::vector<int64_t> ends = gguf_end_token_ids(keys);
  std::string members = gguf_sampling_members(keys);
  if (!ends.empty()) {
    members = fmt::format(", \"eos_token_id\": [{}]", fmt::join(ends, ", ")) + members;
  }
  if (members.empty()) return std::nullopt;
  return fmt::format("{{{}}}\n", members.substr(2));
}

}  // namespace

int64_t gguf_token_id(const GgufKeys& keys, std::string_view name) {
  const int64_t id = keys.integer(token_id_key(name), -1);
  return id == UINT32_MAX ? -1 : id;
}

std::vector<int64_t> gguf_end_token_ids(const GgufKeys& keys) {
  std::vector<int64_t> ends;
  for (const char* name : {"eos", "eot", "eom"}) {
    const int64_t id = gguf_token_id(keys, name);
    if (id >= 0 && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  return ends;
}

std::optional<std::string> make_gguf_text_file(const GgufKeys& keys, std::string_view name) {
  const bool has_tokens =
      keys.has("tokenizer.ggml.tokens") && keys.text("tokenizer.ggml.model", "none") != "none";
  if (!has_tokens) return std::nullopt;
  if (name == "tokenizer.json") return TokenizerWriter(keys).build_tokenizer_json();
  if (name == "tokenizer_config.json") return tokenizer_config_json(keys);
  if (name == "generation_config.json") return generation_config_json(keys);
  return std::nullopt;
}

}  // namespace strata
