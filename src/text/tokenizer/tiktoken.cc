// SPDX-License-Identifier: Apache-2.0
// tiktoken.model and tokenizer_config.json -> TokenizerSpec, of Kimi's models, which have no
// tokenizer.json. A line of the file is a token's bytes in base64 and its id. Sources: tiktoken's
// load.py and its src/lib.rs; the published tokenization_kimi.py for pattern and special tokens.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "text/json_field.h"
#include "text/json_reader.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/spec.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

constexpr std::string_view kClass = "TikTokenTokenizer";
// Runs of Han, words by their cases without Han, digits, signs, ends of lines, spaces.
constexpr std::string_view kPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Ids behind those of the file, and how many of these there are whatever the config names.
constexpr int64_t kMostSpecial = 258, kNumSpecial = 256;
constexpr size_t kMaxTokenBytes = 1024;
constexpr size_t kMaxTokens = 4'000'000;

// The value of a character of base64; 64 of none.
uint32_t base64_value(char c) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return static_cast<uint32_t>(std::min(kDigits.find(c), kDigits.size()));
}

// Padded base64; nothing of what is none.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 4) {
    const size_t digits = i + 4 == text.size() ? 4 - padding : 4;
    uint32_t bits = 0;
    for (size_t d = 0; d < 4; ++d) {
      const uint32_t value = d < digits ? base64_value(text[i + d]) : 0;
      if (value == 64) return std::nullopt;
      bits = bits << 6 | value;
    }
    if ((bits & (0xFFFFFFu >> 8 * (digits - 1))) != 0) return std::nullopt;
    for (size_t b = 0; b + 1 < digits; ++b)
      bytes.push_back(static_cast<char>(bits >> (16 - 8 * b) & 0xFF));
  }
  return bytes;
}

// The characters that byte-level vocabularies have for these bytes.
std::string printable(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_utf8(out, byte_level_character(static_cast<uint8_t>(byte)));
  return out;
}

// The lines of the file.
class RankReader {
 public:
  explicit RankReader(const std::string& where) : where_(where) {}

  // The bytes of each token, by its id.
  std::vector<std::string> read(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) read_line(line);
    }
    check_all_there();
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: line {}: {}", where_, line_, what));
  }

  void read_line(std::string_view line) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) fail("got no space, want a token in base64 and its id");
    std::optional<std::string> bytes = decode_base64(line.substr(0, space));
    if (!bytes) fail("got a token that is no base64");
    if (bytes->size() > kMaxTokenBytes)
      fail(fmt::format("a token of {} bytes, at most {} are read", bytes->size(), kMaxTokenBytes));
    add(std::move(*bytes), parse_id(line.substr(space + 1)));
  }

  [[nodiscard]] size_t parse_id(std::string_view text) const {
    size_t id = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || rest != text.data() + text.size() || id >= kMaxTokens)
      fail(fmt::format("got an id that is no whole number below {}", kMaxTokens));
    return id;
  }

  void add(std::string bytes, size_t id) {
    const auto [known, is_new] = ids_.try_emplace(bytes, id);
    if (!is_new) fail(fmt::format("the token of id {} again, with the id {}", known->second, id));
    if (id >= tokens_.size()) tokens_.resize(id + 1);
    if (!tokens_[id].empty()) fail(fmt::format("the id {} again, of another token", id));
    tokens_[id] = std::move(bytes);
  }

  // Text has any bytes, and ids of special tokens are counted from the last one's.
  void check_all_there() const {
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (tokens_[id].empty()) fail(fmt::format("there is no token of id {}; is a line lost?", id));
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (!ids_.contains(std::string(1, static_cast<char>(byte))))
        fail(fmt::format("there is no token of the byte {:02x} alone; is the file cut?", byte));
    }
  }

  const std::string& where_;
  int64_t line_ = 0;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, size_t> ids_;
};

// Each pair of tokens that together are a token, the one of the lowest id first.
void add_merges(const std::vector<std::string>& tokens, TokenizerSpec& spec) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int32_t>(id));
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      spec.merges.push_back({left->second, right->second, static_cast<int32_t>(id)});
    }
  }
}

void check_class(const JsonField& config) {
  const std::string name = config.string_or("tokenizer_class", "");
  if (name == kClass) return;
  config.unsupported(fmt::format(
      "tiktoken.model of the tokenizer_class '{}' (how it cuts text is known of {} alone)", name,
      kClass));
}

// The special token of an entry of added_tokens_decoder.
AddedToken read_special(const JsonField& entry, int64_t id) {
  AddedToken token;
  token.id = static_cast<int32_t>(id);
  token.content = entry.at("content").string();
  token.special = entry.boolean_or("special", true);
  if (token.content.empty() || token.content.size() > kMaxTokenBytes)
    entry.fail(
        fmt::format("content: got {} bytes, want 1 to {}", token.content.size(), kMaxTokenBytes));
  for (const char* key : {"lstrip", "rstrip", "single_word", "normalized"}) {
    if (entry.boolean_or(key, false))
      entry.unsupported(fmt::format("'{}' of '{}'", key, token.content));
  }
  return token;
}

int64_t parse_special_id(const JsonField& list, std::string_view key, int64_t first) {
  int64_t id = 0;
  const auto [rest, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error == std::errc() && rest == key.data() + key.size() && id >= first &&
      id < first + kMostSpecial) {
    return id;
  }
  list.fail(fmt::format("got the id '{}', want {} to {}: {} behind those of tiktoken.model", key,
                        first, first + kMostSpecial - 1, kMostSpecial));
}

// Those that the config names, and the others by their numbers.
void add_special_tokens(const JsonField& config, TokenizerSpec& spec) {
  const auto first = static_cast<int64_t>(spec.vocab.size());
  std::map<int64_t, AddedToken> tokens;
  if (config.has("added_tokens_decoder")) {
    const JsonField list = config.at("added_tokens_decoder");
    for (const auto& [key, value] : list.object()) {
      const std::string name(key.data(), key.size());
      const int64_t id = parse_special_id(list, name, first);
      tokens[id] = read_special(list.at(name), id);
    }
  }
  for (int64_t id = first; id < first + kNumSpecial; ++id) {
    AddedToken other;
    other.id = static_cast<int32_t>(id);
    other.content = fmt::format("<|reserved_token_{}|>", id);
    other.special = true;
    tokens.try_emplace(id, std::move(other));
  }
  std::unordered_map<std::string, int64_t> ids;
  for (auto& [id, token] : tokens) {
    const auto [known, is_new] = ids.try_emplace(token.content, id);
    if (!is_new)
      config.fail(fmt::format("'{}' has the ids {} and {}", token.content, known->second, id));
    spec.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

TokenizerSpec parse_tiktoken(std::string_view ranks, const std::string& where,
                             std::string_view config_json, const std::string& config_where) {
  const boost::json::value value = parse_json(config_json, config_where);
  const JsonField config(value, config_where);
  check_class(config);
  const std::vector<std::string> tokens = RankReader(where).read(ranks);
  TokenizerSpec spec;
  spec.ignore_merges = true;
  for (const std::string& token : tokens) spec.vocab.emplace_back(printable(token));
  add_merges(tokens, spec);
  add_special_tokens(config, spec);
  PreTokenizerStep cut, bytes;
  cut.pattern = std::make_shared<const Regex>(kPattern, where);
  bytes.kind = PreTokenizerStep::Kind::kByteLevel;
  spec.pre_tokenizer = {cut, bytes};
  spec.has_decoder = true;
  spec.decoder.resize(1);  // ByteLevel
  return spec;
}

}  // namespace strata::text
