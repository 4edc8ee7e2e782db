// SPDX-License-Identifier: Apache-2.0
// How a vocabulary's texts are cut before they are merged, by llama.cpp's names. Source:
// llama-vocab.cpp (names, defaults of bos), the tokenizer.json files of the models (patterns).
#pragma once
#include <span>
#include <string_view>

namespace strata {

// How text is cut before it is merged, by the name in tokenizer.ggml.pre.
struct GgufPre {
  std::string_view name;
  std::string_view splits[6];      // in turn; then ByteLevel
  bool byte_level_splits = false;  // by GPT-2's own pattern
  bool nfc = false;
  bool whole_tokens = false;  // a piece that is a token is not merged
  bool adds_bos = false;      // where the file does not say
};

// In the order of preference where several are alike.
std::span<const GgufPre> gguf_pres();

}  // namespace strata
