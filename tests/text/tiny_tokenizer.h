// SPDX-License-Identifier: Apache-2.0
// Two tokenizers small enough to write down: byte-level as in Llama 3, and SentencePiece-style with
// byte fallback as in Llama 2. As JSON text, so that tests can change a field.
#pragma once
#include <string>
#include <vector>

#include "text/json_reader.h"
#include "text/tokenizer/byte_level.h"
#include "text/unicode/unicode.h"

namespace strata::text {

// A model from its tokens, in the order of their ids, and its merges.
inline std::string bpe_json(const std::vector<std::string>& tokens,
                            const std::vector<std::string>& merges, const std::string& options) {
  std::string out = "{\"type\":\"BPE\"," + options + "\"vocab\":{";
  for (size_t i = 0; i < tokens.size(); ++i)
    out += (i == 0 ? "" : ",") + json_quote(tokens[i]) + ":" + std::to_string(i);
  out += "},\"merges\":[";
  for (size_t i = 0; i < merges.size(); ++i) out += (i == 0 ? "" : ",") + json_quote(merges[i]);
  return out + "]}";
}

inline std::string added_token_json(size_t id, const std::string& content,
                                    const std::string& flags = {}) {
  return "{\"id\":" + std::to_string(id) + ",\"content\":" + json_quote(content) +
         ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false," +
         "\"special\":true" + flags + "}";
}

// Merges of "left right", best first; every result becomes a token behind the given ones.
inline void add_merged(std::vector<std::string>& tokens, const std::vector<std::string>& merges) {
  for (std::string merged : merges) {
    merged.erase(merged.find(' '), 1);
    tokens.push_back(merged);
  }
}

inline std::string tiny_byte_level_json() {
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, byte_level_character(static_cast<uint8_t>(byte)));
    tokens.push_back(token);
  }
  std::vector<std::string> merges = {"t h", "th e",  "i n", "Ġ the", "a a",  "aa aa", "aaaa aaaa",
                                     "Ġ Ġ", "ĠĠ ĠĠ", "Ã ©", "ð Ł",   "ðŁ ĺ", "h e",   "l l"};
  add_merged(tokens, merges);
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  return "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[" +
         added_token_json(tokens.size(), "<|end|>") + "," +
         added_token_json(tokens.size() + 1, "<|begin|>") +
         "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
         "\"type\":"
         "\"Split\",\"pattern\":{\"Regex\":\"" +
         pattern +
         "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_"
         "space\":"
         "false,\"trim_offsets\":true,\"use_regex\":false}]},\"post_processor\":null,\"decoder\":{"
         "\"type\":\"ByteLevel\"},\"model\":" +
         bpe_json(tokens, merges, "") + "}";
}

inline std::string tiny_sentencepiece_json() {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte)
    tokens.push_back(std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">");
  for (const char* token : {"▁", "t", "h", "e", "a", "i", "n", "s", "é", "的", "😀"})
    tokens.emplace_back(token);
  std::vector<std::string> merges = {"t h",   "th e", "i n",   "▁ the", "a a",
                                     "aa aa", "▁ ▁",  "▁▁ ▁▁", "s s"};
  add_merged(tokens, merges);
  return "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[" +
         added_token_json(0, "<unk>") + "," + added_token_json(1, "<s>") + "," +
         added_token_json(2, "</s>") +
         "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
         "\"prepend\":"
         "\"▁\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"▁\"}]},"
         "\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":\"Sequence\","
         "\"decoders\":[{"
         "\"type\":\"Replace\",\"pattern\":{\"String\":\"▁\"},\"content\":\" "
         "\"},{\"type\":\"ByteFallback\"},"
         "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
         "\",\"start\":1,\"stop\":0}]},\"model\":" +
         bpe_json(tokens, merges,
                  "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,") +
         "}";
}

}  // namespace strata::text
