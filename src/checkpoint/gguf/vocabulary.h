// SPDX-License-Identifier: Apache-2.0
// The way back of gguf/tokenizer.h: a model's tokenizer.json, tokenizer_config.json and chat
// template as keys of a GGUF file, as llama.cpp's converter writes them.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/model_texts.h"
#include "checkpoint/gguf/gguf_header.h"

namespace strata {

// `num_rows`: of the embedding; ids without a token are padding. Writes tokenizer.ggml.model "none"
// where the model has no tokenizer.json, and says false. Error{kUnsupported} for a tokenizer that
// llama.cpp has no rules for. `own_model`: what llama.cpp calls a vocabulary of the architecture's
// own, of SentencePiece's tokens with an order of merges.
bool add_vocabulary(const ModelTexts& texts, int64_t num_rows, GgufHeader& header,
                    std::string_view own_model = {});

}  // namespace strata
