// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/decoder.h"

#include <optional>

#include "base/ascii.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

using Kind = DecoderStep::Kind;

// All but what may still become a character; bytes that are wrong become U+FFFD.
std::string take_whole_characters(std::string& bytes) {
  std::string text;
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Step next = decode_utf8_at(bytes, pos);
    if (next.truncated) break;
    const auto size = static_cast<size_t>(next.num_bytes);
    text += next.valid ? std::string_view(bytes).substr(pos, size) : kReplacement;
    pos += size;
  }
  bytes.erase(0, pos);
  return text;
}

// `most` of them at most, which become fewer; none, once something else has come.
std::string_view without_leading(std::string_view text, const std::string& character,
                                 int64_t& most) {
  while (most > 0 && text.starts_with(character)) {
    text.remove_prefix(character.size());
    --most;
  }
  if (!text.empty()) most = 0;
  return text;
}

// What is certain of the text behind `num_held` such characters; at its end `most` wait at most.
std::string hold_back_trailing(std::string_view text, const std::string& character, int64_t most,
                               int64_t& num_held) {
  std::string out;
  for (int64_t i = 0; i < num_held; ++i) out += character;
  out += text;
  num_held = 0;
  while (num_held < most && out.ends_with(character)) {
    out.resize(out.size() - character.size());
    ++num_held;
  }
  return out;
}

}  // namespace

std::optional<char> parse_fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (digit_value(c) >= 16) return std::nullopt;
    value = value * 16 + digit_value(c);
  }
  return static_cast<char>(value);
}

DecodeStream::DecodeStream(std::span<const DecoderStep> steps, bool has_decoder)
    : steps_(steps), has_decoder_(has_decoder), states_(steps.size() + 1) {}

void DecodeStream::push(std::string_view token, std::string& out) { feed_step(0, {token}, out); }

void DecodeStream::flush(std::string& out) {
  finish_steps_from(0, out);
  states_.assign(steps_.size() + 1, {});
}

void DecodeStream::feed_step(size_t step, Chunk chunk, std::string& out) {
  if (step == steps_.size()) {
    if (!has_decoder_ && states_[step].opened) out += ' ';
    states_[step].opened = true;
    out += chunk.text;
    return;
  }
  switch (steps_[step].kind) {
    case Kind::kByteLevel:
      return feed_byte_level(step, chunk, out);
    case Kind::kReplace: {
      const AlignedText text = AlignedText::from(chunk.text, 0, false);
      const AlignedText changed = replace_all(*steps_[step].pattern, steps_[step].content, text);
      return feed_step(step + 1, {changed.text, chunk.begin, chunk.end}, out);
    }
    case Kind::kByteFallback:
      return feed_byte_fallback(step, chunk, out);
    case Kind::kFuse: {
      const bool begin = !std::exchange(states_[step].opened, true);
      return feed_step(step + 1, {chunk.text, begin, false}, out);
    }
    case Kind::kStrip:
      return feed_strip(step, chunk, out);
    case Kind::kMetaspace:
      return feed_metaspace(step, chunk, out);
  }
}

void DecodeStream::finish_steps_from(size_t step, std::string& out) {
  if (step == steps_.size()) return;
  State& state = states_[step];
  if (steps_[step].kind == Kind::kByteFallback) end_byte_run(step, out);
  if (steps_[step].kind == Kind::kFuse) feed_step(step + 1, {"", !state.opened, true}, out);
  if (steps_[step].kind == Kind::kByteLevel) {
    const std::string_view rest = state.held.empty() ? "" : kReplacement;
    feed_step(step + 1, {rest, !state.opened, true}, out);
  }
  finish_steps_from(step + 1, out);
}

void DecodeStream::feed_byte_level(size_t step, Chunk chunk, std::string& out) {
  State& state = states_[step];
  const auto bytes = byte_level_bytes(chunk.text);
  state.held += bytes ? *bytes : std::string(chunk.text);
  const std::string text = take_whole_characters(state.held);
  const bool begin = !std::exchange(state.opened, true);
  feed_step(step + 1, {text, begin, false}, out);
}

void DecodeStream::feed_byte_fallback(size_t step, Chunk chunk, std::string& out) {
  if (const auto byte = parse_fallback_byte(chunk.text)) {
    states_[step].held.push_back(*byte);
    return;
  }
  end_byte_run(step, out);
  feed_step(step + 1, chunk, out);
}

// A run is one piece of text, or, when anything in it is wrong, one U+FFFD a byte.
void DecodeStream::end_byte_run(size_t step, std::string& out) {
  const std::string run = std::exchange(states_[step].held, {});
  if (run.empty()) return;
  if (is_valid_utf8(run)) return feed_step(step + 1, {run}, out);
  for (size_t i = 0; i < run.size(); ++i) feed_step(step + 1, {kReplacement}, out);
}

void DecodeStream::feed_strip(size_t step, Chunk chunk, std::string& out) {
  const DecoderStep& spec = steps_[step];
  State& state = states_[step];
  if (chunk.begin) state.strip_left = spec.start, state.num_held = 0;
  const std::string_view rest = without_leading(chunk.text, spec.content, state.strip_left);
  const std::string text = hold_back_trailing(rest, spec.content, spec.stop, state.num_held);
  feed_step(step + 1, {text, chunk.begin, chunk.end}, out);
}

void DecodeStream::feed_metaspace(size_t step, Chunk chunk, std::string& out) {
  const DecoderStep& spec = steps_[step];
  const bool first = !std::exchange(states_[step].opened, true);
  std::string text;
  std::string_view rest = chunk.text;
  while (!rest.empty()) {
    const size_t at = std::min(rest.find(spec.content), rest.size());
    text += rest.substr(0, at);
    rest.remove_prefix(at);
    if (rest.empty()) break;
    if (!first || !spec.drop_in_first) text += ' ';
    rest.remove_prefix(spec.content.size());
  }
  feed_step(step + 1, {text, chunk.begin, chunk.end}, out);
}

}  // namespace strata::text
