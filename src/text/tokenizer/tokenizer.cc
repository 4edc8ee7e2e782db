// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer_impl.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

bool is_byte_level(const TokenizerSpec& spec) {
  return !spec.pre_tokenizer.empty() &&
         spec.pre_tokenizer.back().kind == PreTokenizerStep::Kind::kByteLevel;
}

// Whether each byte of a text, as the normalizer leaves it, is in a token's.
bool keeps_all(const TokenizerSpec& spec) {
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

// What an added token decodes to: a normalized one is kept, and printed, as the normalizer leaves
// it.
std::string decoded_text(const TokenizerSpec& spec, const AddedToken& token) {
  AlignedText content = AlignedText::from(token.content, 0, false);
  if (token.normalized) content = normalize(spec.normalizer, std::move(content));
  return std::move(content.text);
}

AddedTokenFinder make_finder(const TokenizerSpec& spec, bool normalized) {
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
AlignedText sanitize(std::string_view text, bool tracked) {
  AlignedText out;
  out.tracked = tracked;
  if (tracked) out.map.push_back(0);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = step_utf8(text, pos);
    const size_t end = pos + static_cast<size_t>(step.num_bytes);
    out.text += step.valid ? text.substr(pos, end - pos) : kReplacement;
    while (tracked && out.map.size() < out.text.size())
      out.map.push_back(step.valid ? pos + (out.map.size() - (out.text.size() - (end - pos)))
                                   : pos);
    if (tracked) out.map.push_back(end);
    pos = end;
  }
  return out;
}

}  // namespace

Tokenizer::Impl::Impl(TokenizerSpec parsed, const std::string& where)
    : spec(std::move(parsed)),
      bpe(spec, is_byte_level(spec), where),
      raw_tokens(make_finder(spec, false)),
      normalized_tokens(make_finder(spec, true)),
      tokens(spec.vocab) {
  StringTable special_texts;
  for (const AddedToken& token : spec.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    if (tokens.size() <= id) tokens.resize(id + 1);
    tokens[id] = decoded_text(spec, token);
    added_ids.insert(token.content, token.id);
    if (token.special) special_texts.insert(token.content, token.id);
  }
  if (keeps_all(spec)) {
    for (const auto& token : tokens) longest = std::max(longest, token ? token->size() : 0);
  }
  special.resize(tokens.size());
  skipped.resize(tokens.size());
  for (const AddedToken& token : spec.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    special[id] = special[id] || token.special;
    // By its text, as in the original: a special token that the normalizer changes is not skipped.
    skipped[id] = special_texts.find(*tokens[id]) != StringTable::kNone;
  }
}

const std::string* Tokenizer::Impl::token(int32_t id, bool skip_special) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens.size()) return nullptr;
  if (skip_special && skipped[static_cast<size_t>(id)]) return nullptr;
  const auto& token = tokens[static_cast<size_t>(id)];
  return token ? &*token : nullptr;
}

void Tokenizer::Impl::encode_segment(AlignedText text, bool at_start, BpeScratch& scratch,
                                     Encoding& out) const {
  Pieces pieces;
  pieces.pieces.push_back({0, text.text.size()});
  pieces.text = std::move(text);
  pieces.at_start = at_start;
  pre_tokenize(spec.pre_tokenizer, pieces);
  for (const Piece piece : pieces.pieces) {
    bpe.encode(std::string_view(pieces.text.text).substr(piece.begin, piece.end - piece.begin),
               scratch);
    for (const BpeSymbol& symbol : scratch.symbols) {
      out.ids.push_back(symbol.id);
      if (!pieces.text.tracked) continue;
      const size_t begin = piece.begin + symbol.begin;
      out.spans.push_back({pieces.text.map[begin], pieces.text.map[begin + symbol.size]});
    }
  }
}

void Tokenizer::Impl::encode(std::string_view text, BpeScratch& scratch, Encoding& out,
                             bool tracked) const {
  using Segment = AddedTokenFinder::Segment;
  for (const Segment& segment : raw_tokens.split(text)) {
    if (segment.id >= 0) {
      out.ids.push_back(segment.id);
      if (tracked) out.spans.push_back({segment.begin, segment.end});
      continue;
    }
    AlignedText normalized = normalize(
        spec.normalizer, AlignedText::from(text.substr(segment.begin, segment.end - segment.begin),
                                           segment.begin, tracked));
    for (const Segment& inner : normalized_tokens.split(normalized.text)) {
      if (inner.id >= 0) {
        out.ids.push_back(inner.id);
        if (tracked) out.spans.push_back({normalized.map[inner.begin], normalized.map[inner.end]});
        continue;
      }
      const bool at_start = segment.begin == 0 && inner.begin == 0;
      const bool whole = inner.begin == 0 && inner.end == normalized.text.size();
      AlignedText part;
      if (whole) {
        part = std::move(normalized);
      } else {
        part.tracked = tracked;
        if (tracked) part.map.push_back(normalized.map[inner.begin]);
        part.copy(normalized, inner.begin, inner.end);
      }
      encode_segment(std::move(part), at_start, scratch, out);
      if (whole) break;
    }
  }
}

Tokenizer Tokenizer::load(const std::string& path) {
  std::string file = path;
  if (std::filesystem::is_directory(path)) file += "/tokenizer.json";
  return parse(read_file(file, kMaxFileBytes), file);
}

Tokenizer Tokenizer::load(const ModelTexts& texts) {
  constexpr std::string_view kName = "tokenizer.json";
  return parse(texts.read(kName, kMaxFileBytes), texts.where(kName));
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  return Tokenizer(std::make_shared<const Impl>(parse_tokenizer_json(json, where), where));
}

namespace {

void check_size(std::string_view text) {
  if (text.size() > Tokenizer::kMaxTextBytes)
    throw Error(ErrorCode::kResourceExhausted,
                "tokenizer: a text of " + std::to_string(text.size()) + " bytes; at most " +
                    std::to_string(Tokenizer::kMaxTextBytes) + " are encoded at once");
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special,
                                       EncodeStats* stats) const {
  check_size(text);
  std::string sanitized;
  if (!is_valid_utf8(text)) text = sanitized = sanitize_utf8(text);
  const Template& added = impl_->spec.post_processor;
  BpeScratch scratch;
  Encoding out;
  out.ids.reserve(text.size() / 3 + 8);
  if (add_special) out.ids = added.before;
  impl_->encode(text, scratch, out, false);
  if (add_special) out.ids.insert(out.ids.end(), added.after.begin(), added.after.end());
  if (stats != nullptr) stats->heap_operations += scratch.heap_operations;
  return std::move(out.ids);
}

Encoding Tokenizer::encode_with_spans(std::string_view text, bool add_special) const {
  check_size(text);
  const Template& added = impl_->spec.post_processor;
  BpeScratch scratch;
  Encoding out;
  if (add_special) out.ids = added.before;
  if (add_special) out.spans.resize(added.before.size());
  const size_t num_before = out.ids.size();
  if (is_valid_utf8(text)) {
    impl_->encode(text, scratch, out, true);
  } else {
    const AlignedText valid = sanitize(text, true);
    impl_->encode(valid.text, scratch, out, true);
    for (size_t i = num_before; i < out.spans.size(); ++i)
      out.spans[i] = {valid.map[out.spans[i].begin], valid.map[out.spans[i].end]};
  }
  if (add_special) {
    out.ids.insert(out.ids.end(), added.after.begin(), added.after.end());
    out.spans.resize(out.ids.size(), {text.size(), text.size()});
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  DecodeStream stream(impl_->spec.decoder, impl_->spec.has_decoder);
  std::string out;
  for (const int32_t id : ids) {
    const std::string* token = impl_->token(id, skip_special);
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
  const std::string* token = impl_->token(id, false);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() &&
         impl_->special[static_cast<size_t>(id)];
}

int64_t Tokenizer::least_tokens(std::string_view text) const {
  if (impl_->longest == 0) return 0;
  // NFC makes one character of several that have at most three times its bytes; ASCII has none.
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
  return static_cast<int64_t>(text.size() / ((is_ascii ? 1 : 3) * impl_->longest));
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->tokens.size()); }

}  // namespace strata::text
