#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A tiny Gemma 4 of E2B's form with random weights in bf16: layers that read keys and values of others, a window of five
# tokens, inputs of each layer; the bundled model's pieces of text with Gemma 4's special tokens, and its chat template,
# which trl's package carries.
# usage: tools/run/tiny_gemma4.sh PROGRAM DIR
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
strata=$(realpath "${1:?usage: tools/run/tiny_gemma4.sh PROGRAM DIR}")
out=${2:?usage: tools/run/tiny_gemma4.sh PROGRAM DIR}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
[ -e "$root/build/tokenizers/trl/gemma4_v5.jinja" ] ||
  python3 "$root/tools/data/make_test_tokenizers.py" --download "$root/build/tokenizers" >"$made/log"
cp "$root/build/tokenizers/trl/gemma4_v5.jinja" "$made/chat_template.jinja"
python3 - "$root" "$made" <<'EOF'
import json
import pathlib
import sys

root, made = map(pathlib.Path, sys.argv[1:])
SPECIAL = ["<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
           "<tool_response|>", "<|channel>", "<channel|>", "<|think|>", '<|"|>']
tokenizer = json.loads((root / "models/tiny-qwen3/tokenizer.json").read_text())
first, like = len(tokenizer["model"]["vocab"]), tokenizer["added_tokens"][0]
tokenizer["added_tokens"] = [like | {"id": first + i, "content": text} for i, text in enumerate(SPECIAL)]
ids = {text: first + i for i, text in enumerate(SPECIAL)}
ends = [ids["<eos>"], ids["<turn|>"], ids["<|tool_response>"]]
vocabulary = -(-(first + len(SPECIAL)) // 64) * 64
config = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "vocab_size": vocabulary, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
    "global_head_dim": 32, "sliding_window": 5, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
    "num_kv_shared_layers": 4, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": vocabulary, "final_logit_softcapping": 30.0, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "initializer_range": 0.05, "dtype": "bfloat16",
    "bos_token_id": ids["<bos>"], "eos_token_id": ends, "pad_token_id": ids["<pad>"]}
for name, value in {"tokenizer": tokenizer, "config": config, "generation_config": {"eos_token_id": ends},
                    "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>",
                                         "pad_token": "<pad>", "model_max_length": 4096}}.items():
    (made / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False))
EOF
"$strata" init --config "$made" --out "$out" --seed 1
