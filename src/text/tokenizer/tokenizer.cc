// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer_impl.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

// Bytes that are taken at most for each of a text's, where it is normalized or made UTF-8: by steps
// that replace, with a text that grows; by NFC; and for each token.
constexpr size_t kReplacedBytes = 7;
constexpr size_t kNfcBytes = 3;
constexpr size_t kIdBytes = 2 * sizeof(int32_t);
constexpr size_t kLongPiece = 4096;  // bytes; shorter ones are not told of

bool is_byte_level(const TokenizerSpec& spec) {
  return !spec.pre_tokenizer.empty() &&
         spec.pre_tokenizer.back().kind == PreTokenizerStep::Kind::kByteLevel;
}

// Whether each byte of a text, as the normalizer leaves it, is in a token's.
bool keeps_all_bytes(const TokenizerSpec& spec) {
  const auto is_nfc = [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::kNfc;
  };
  const auto removes = [](const PreTokenizerStep& step) {
    return step.behavior == PreTokenizerStep::Behavior::kRemoved;
  };
  const auto takes_spaces = [](const AddedToken& token) { return token.lstrip || token.rstrip; };
  return is_byte_level(spec) && std::ranges::all_of(spec.normalizer, is_nfc) &&
         std::ranges::none_of(spec.pre_tokenizer, removes) &&
         std::ranges::none_of(spec.added_tokens, takes_spaces);
}

// What normalizing takes at most for each byte of a text.
size_t normalizing_bytes_per_byte(std::span<const NormalizerStep> steps) {
  if (steps.empty()) return 1;
  const bool replaces = std::ranges::any_of(
      steps, [](const auto& step) { return step.kind != NormalizerStep::Kind::kNfc; });
  return replaces ? kReplacedBytes : kNfcBytes;
}

// What an added token decodes to: a normalized one is kept and printed as normalized.
std::string decoded_text(const TokenizerSpec& spec, const AddedToken& token) {
  AlignedText content = AlignedText::from(token.content, 0, false);
  if (token.normalized) content = normalize(spec.normalizer, std::move(content));
  return std::move(content.text);
}

AddedTokenFinder make_added_token_finder(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> contents;
  // Special ones first: of two with the same text the first is found.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : spec.added_tokens) {
      if (token.normalized != normalized || token.special != special) continue;
      tokens.push_back(token);
      contents.push_back(decoded_text(spec, token));
    }
  }
  return {std::move(tokens), std::move(contents)};
}

// Valid UTF-8 with a map back to `text`.
AlignedText sanitize_with_map(std::string_view text) {
  AlignedText out;
  out.tracked = true;
  out.map.push_back(0);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = decode_utf8_at(text, pos);
    const size_t end = pos + static_cast<size_t>(step.num_bytes);
    if (step.valid) {
      out.text += text.substr(pos, end - pos);
      for (size_t at = pos + 1; at <= end; ++at) out.map.push_back(at);
    } else {
      out.text += kReplacement;
      out.map.insert(out.map.end(), kReplacement.size() - 1, pos);
      out.map.push_back(end);
    }
    pos = end;
  }
  return out;
}

void check_text_size(std::string_view text) {
  if (text.size() > Tokenizer::kMaxTextBytes)
    throw Error(ErrorCode::kResourceExhausted,
                "tokenizer: a text of " + std::to_string(text.size()) + " bytes; at most " +
                    std::to_string(Tokenizer::kMaxTextBytes) + " are encoded at once");
}

}  // namespace

Tokenizer::Impl::Impl(TokenizerSpec parsed, const std::string& where)
    : spec(std::move(parsed)),
      bpe(spec, is_byte_level(spec), where),
      raw_tokens(make_added_token_finder(spec, /*normalized=*/false)),
      normalized_tokens(make_added_token_finder(spec, /*normalized=*/true)),
      tokens(spec.vocab) {
  add_added_tokens();
  if (keeps_all_bytes(spec)) compute_byte_weights();
  mark_special_tokens();
  Run run;
  if (encode_text("a", /*add_special=*/false, run)) before = std::move(run.out.ids);
}

void Tokenizer::Impl::add_added_tokens() {
  for (const AddedToken& token : spec.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    if (tokens.size() <= id) tokens.resize(id + 1);
    tokens[id] = decoded_text(spec, token);
    added_ids.insert(token.content, token.id);
  }
}

void Tokenizer::Impl::mark_special_tokens() {
  StringTable special_texts;
  for (const AddedToken& token : spec.added_tokens)
    if (token.special) special_texts.insert(token.content, token.id);
  special.resize(tokens.size());
  skipped.resize(tokens.size());
  for (const AddedToken& token : spec.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    special[id] = special[id] || token.special;
    // By its text, as in the original: a special token that the normalizer changes is not skipped.
    skipped[id] = special_texts.find(*tokens[id]) != StringTable::kNone;
  }
}

void Tokenizer::Impl::compute_byte_weights() {
  for (const auto& token : tokens) longest = std::max(longest, token ? token->size() : 0);
  for (size_t byte = 0; byte < 256; ++byte) weights[byte] = bpe.weight(static_cast<uint8_t>(byte));
  for (const AddedToken& token : spec.added_tokens) {
    for (const char c : token.content) {
      uint64_t& weight = weights[static_cast<uint8_t>(c)];
      weight = std::min(weight, Bpe::kWeightOfToken / token.content.size());
    }
  }
}

const std::string* Tokenizer::Impl::find_token(int32_t id, bool skip_special) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens.size()) return nullptr;
  if (skip_special && skipped[static_cast<size_t>(id)]) return nullptr;
  const auto& token = tokens[static_cast<size_t>(id)];
  return token ? &*token : nullptr;
}

AlignedText Tokenizer::Impl::normalize_part(std::string_view text, size_t origin, Run& run) const {
  run.report_memory(text.size() * normalizing_bytes_per_byte(spec.normalizer), 0);
  return normalize(spec.normalizer, AlignedText::from(text, origin, run.tracked));
}

bool Tokenizer::Impl::encode_piece(const AlignedText& text, Piece piece, Run& run) const {
  std::string_view rest(text.text);
  rest = rest.substr(piece.begin, piece.end - piece.begin);
  for (size_t begin = piece.begin; !rest.empty();) {
    const std::string_view part = rest.substr(0, bpe.first_part_size(rest));
    if (part.size() > kLongPiece) {
      if (run.out.ids.size() + bpe.least_tokens(part) > run.most) return false;
      run.report_memory(0, part.size());
    }
    bpe.encode(part, run.scratch);
    if (run.out.ids.size() + run.scratch.symbols.size() > run.most) return false;
    run.append_symbols(text, begin);
    begin += part.size();
    rest.remove_prefix(part.size());
  }
  return true;
}

bool Tokenizer::Impl::encode_normalized(const AlignedText& text, bool at_start, Run& run) const {
  return normalized_tokens.split_while(text.text, [&](AddedTokenFinder::Segment part) {
    if (part.id < 0) {
      return pre_tokenize(
          spec.pre_tokenizer, text, {part.begin, part.end}, at_start && part.begin == 0,
          [&](const AlignedText& of, Piece piece) { return encode_piece(of, piece, run); });
    }
    return run.append_token(part.id,
                            run.tracked ? Span{text.map[part.begin], text.map[part.end]} : Span());
  });
}

bool Tokenizer::Impl::encode_valid_utf8(std::string_view text, Run& run) const {
  return raw_tokens.split_while(text, [&](AddedTokenFinder::Segment part) {
    if (part.id < 0) {
      const std::string_view some = text.substr(part.begin, part.end - part.begin);
      return encode_normalized(normalize_part(some, part.begin, run), part.begin == 0, run);
    }
    return run.append_token(part.id, {part.begin, part.end});
  });
}

Tokenizer Tokenizer::load(const std::string& path) {
  if (std::filesystem::is_directory(path)) return load(ModelTexts(path));
  return parse(read_file(path, kMaxFileBytes), path);
}

std::optional<Tokenizer> Tokenizer::find(const ModelTexts& texts) {
  constexpr std::string_view kName = "tokenizer.json", kRanks = "tiktoken.model",
                             kConfig = "tokenizer_config.json";
  if (const auto json = texts.find(kName, kMaxFileBytes)) return parse(*json, texts.where(kName));
  const auto ranks = texts.find(kRanks, kMaxFileBytes);
  if (!ranks) return std::nullopt;
  TokenizerSpec spec = parse_tiktoken(*ranks, texts.where(kRanks),
                                      texts.read(kConfig, kMaxFileBytes), texts.where(kConfig));
  return Tokenizer(std::make_shared<const Impl>(std::move(spec), texts.where(kRanks)));
}

Tokenizer Tokenizer::load(const ModelTexts& texts) {
  if (auto tokenizer = find(texts)) return std::move(*tokenizer);
  for (const char* other : {"tokenizer.model", "tekken.json", "vocab.json"}) {
    if (!texts.find(other, kMaxFileBytes)) continue;
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: there is no tokenizer.json; {}: {}", texts.where(), other,
                            describe_file_kind(kind_of_file(other))));
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("{}: there is no tokenizer.json, which text needs; take it from where "
                          "the model is from (its files of a tokenizer and of the chat template)",
                          texts.where()));
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  return Tokenizer(std::make_shared<const Impl>(parse_tokenizer_json(json, where), where));
}

std::string_view Tokenizer::Impl::as_valid_utf8(std::string_view text, std::string& sanitized,
                                                Run& run) {
  if (is_valid_utf8(text)) return text;
  run.report_memory(kReplacedBytes * text.size(), 0);
  sanitized = sanitize_utf8(text);
  run.base = std::exchange(run.texts, 0);
  return sanitized;
}

bool Tokenizer::Impl::encode_text(std::string_view text, bool add_special, Run& run) const {
  check_text_size(text);
  std::string sanitized;
  text = as_valid_utf8(text, sanitized, run);
  run.base += kIdBytes * std::min(text.size(), run.most);
  const Template& added = spec.post_processor;
  std::vector<int32_t>& ids = run.out.ids;
  ids.reserve(std::min(text.size() / 3, run.most) + 8);
  if (add_special) ids = added.before;
  if (!encode_valid_utf8(text, run)) return false;
  if (add_special) ids.insert(ids.end(), added.after.begin(), added.after.end());
  return ids.size() <= run.most;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special,
                                       EncodeStats* stats) const {
  Impl::Run run;
  impl_->encode_text(text, add_special, run);
  if (stats != nullptr) stats->heap_operations += run.scratch.heap_operations;
  return std::move(run.out.ids);
}

std::optional<std::vector<int32_t>> Tokenizer::encode_within(std::string_view text,
                                                             const EncodeBound& bound,
                                                             bool add_special) const {
  Impl::Run run{.most = bound.most, .hold = &bound.hold};
  if (!impl_->encode_text(text, add_special, run)) return std::nullopt;
  return std::move(run.out.ids);
}

void Tokenizer::Impl::encode_invalid_utf8(std::string_view text, Run& run) const {
  const AlignedText valid = sanitize_with_map(text);
  std::vector<Span>& spans = run.out.spans;
  const size_t first = spans.size();
  encode_valid_utf8(valid.text, run);
  for (size_t i = first; i < spans.size(); ++i)
    spans[i] = {valid.map[spans[i].begin], valid.map[spans[i].end]};
}

Encoding Tokenizer::encode_with_spans(std::string_view text, bool add_special) const {
  check_text_size(text);
  const Template& added = impl_->spec.post_processor;
  Impl::Run run{.tracked = true};
  Encoding& out = run.out;
  if (add_special) out.ids = added.before;
  if (add_special) out.spans.resize(added.before.size());
  if (is_valid_utf8(text)) {
    impl_->encode_valid_utf8(text, run);
  } else {
    impl_->encode_invalid_utf8(text, run);
  }
  if (add_special) {
    out.ids.insert(out.ids.end(), added.after.begin(), added.after.end());
    out.spans.resize(out.ids.size(), {text.size(), text.size()});
  }
  return std::move(run.out);
}

size_t Tokenizer::num_doubled_at_start(std::string_view text) const {
  const std::vector<int32_t>& added = impl_->spec.post_processor.before;
  for (const int32_t id : added) {
    const std::string* token = impl_->find_token(id, false);
    if (token == nullptr || !is_added(id) || !text.starts_with(*token)) return 0;
    text.remove_prefix(token->size());
  }
  return added.size();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  DecodeStream stream(impl_->spec.decoder, impl_->spec.has_decoder);
  std::string out;
  for (const int32_t id : ids) {
    const std::string* token = impl_->find_token(id, skip_special);
    if (token != nullptr) stream.push(*token, out);
  }
  stream.flush(out);
  return out;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  int32_t id = impl_->added_ids.find(token);
  if (id == StringTable::kNone) id = impl_->bpe.token_to_id(token);
  return id == StringTable::kNone ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  const std::string* token = impl_->find_token(id, false);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  std::vector<int32_t> ids = impl_->before;
  const size_t before = decode(ids).size();
  ids.push_back(id);
  std::string bytes = decode(ids).substr(before);
  const std::string* token = impl_->find_token(id, false);
  if (token == nullptr || bytes.find("\uFFFD") == std::string::npos) return bytes;
  if (const auto byte = parse_fallback_byte(*token)) return {*byte};
  return byte_level_bytes(*token).value_or(bytes);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() &&
         impl_->special[static_cast<size_t>(id)];
}

bool Tokenizer::is_added(int32_t id) const {
  const std::optional<std::string> token = id_to_token(id);
  return token && impl_->added_ids.find(*token) == id;
}

int64_t Tokenizer::least_tokens(std::string_view text) const {
  if (impl_->longest == 0) return 0;
  uint64_t sum = 0;
  uint8_t all = 0;
  for (const char c : text) {
    sum += impl_->weights[static_cast<uint8_t>(c)];
    all |= static_cast<uint8_t>(c);
  }
  if (all < 0x80) return static_cast<int64_t>(sum / Bpe::kWeightOfToken);
  // NFC makes one character of several that have at most three times its bytes; ASCII has none.
  return static_cast<int64_t>(text.size() / (3 * impl_->longest));
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->tokens.size()); }

}  // namespace strata::text
