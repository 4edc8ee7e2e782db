// SPDX-License-Identifier: Apache-2.0
// DecodeStream: the decoder steps of a tokenizer.json, one token at a time. What push() appends is
// final: the pieces joined equal what decoding the whole list gives. Text that a later token may
// still change (half a character, a run of byte tokens, trailing characters that Strip may take)
// waits. One thread.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/spec.h"

namespace strata::text {

// The byte of <0xXX>, hexadecimal digits of either case.
std::optional<char> parse_fallback_byte(std::string_view token);

class DecodeStream {
 public:
  // `steps` is borrowed. Without a decoder, tokens are joined by spaces.
  DecodeStream(std::span<const DecoderStep> steps, bool has_decoder);

  void push(std::string_view token, std::string& out);
  // No more tokens come. The stream is then as new.
  void flush(std::string& out);

 private:
  // A token, or after Fuse and ByteLevel a part of the only one.
  struct Chunk {
    std::string_view text;
    bool begin = true;
    bool end = true;
  };
  struct State {
    bool opened = false;  // a token has come
    std::string held;     // bytes that wait
    int64_t strip_left = 0;
    int64_t num_held = 0;  // kStrip: characters that wait
  };
  void feed_step(size_t step, Chunk chunk, std::string& out);
  void finish_steps_from(size_t step, std::string& out);
  void feed_byte_level(size_t step, Chunk chunk, std::string& out);
  void feed_byte_fallback(size_t step, Chunk chunk, std::string& out);
  void end_byte_run(size_t step, std::string& out);
  void feed_strip(size_t step, Chunk chunk, std::string& out);
  void feed_metaspace(size_t step, Chunk chunk, std::string& out);

  std::span<const DecoderStep> steps_;
  bool has_decoder_;
  std::vector<State> states_;  // one a step, and one for the end
};

}  // namespace strata::text
