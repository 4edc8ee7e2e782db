// SPDX-License-Identifier: Apache-2.0
// What tensors are called in GGUF files and in Hugging Face's, both ways from one table. Source:
// llama.cpp's convert_hf_to_gguf.py and gguf-py's tensor_mapping.py.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/gguf/architecture.h"

namespace strata {

// "token_embd.weight" -> "model.embed_tokens.weight"; empty where it is none outside the layers.
std::string_view huggingface_name_outside_layers(std::string_view stored);
// Behind "blk.N.": "attn_q.weight" -> "self_attn.q_proj.weight"; empty where it is not known.
std::string huggingface_name_in_layer(const GgufArchitecture& architecture,
                                      std::string_view stored);

// The same of the layer of multi-token prediction, in which "nextn.eh_proj.weight" is
// "fc.weight" of the checkpoint's "mtp."; empty where the architecture has none that is known.
std::string huggingface_name_in_mtp(const GgufArchitecture& architecture, std::string_view stored);

// The way back, of a whole name: "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight".
// That of multi-token prediction is the layer behind the `num_layers` of the decoder.
// An expert's number is left out, since a file has a layer's experts in one tensor, in which gate
// and up may be too. Empty where the architecture has no name for it.
std::string gguf_stored_name(const GgufArchitecture& architecture, std::string_view name,
                             int64_t num_layers);

}  // namespace strata
