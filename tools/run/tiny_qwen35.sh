#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A tiny Qwen3.5 with random weights: three gated delta nets and one attention with an output gate, the bundled model's
# tokenizer in Qwen3.5's form and Qwen3.5's chat template.
# usage: tools/run/tiny_qwen35.sh PROGRAM DIR
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
strata=$(realpath "${1:?usage: tools/run/tiny_qwen35.sh PROGRAM DIR}")
out=${2:?usage: tools/run/tiny_qwen35.sh PROGRAM DIR}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cp "$root"/models/tiny-qwen3/{generation_config,tokenizer_config}.json "$made"
cp "$root/tests/data/third_party/templates/qwen35.jinja" "$made/chat_template.jinja"
python3 - "$root" "$made/tokenizer.json" <<'EOF'
import json
import sys

sys.path.insert(0, sys.argv[1] + "/tools/data")
from make_test_tokenizers import QWEN35_PATTERN

with open(sys.argv[1] + "/models/tiny-qwen3/tokenizer.json", encoding="utf-8") as f:
    tokenizer = json.load(f)
split, byte_level = tokenizer["pre_tokenizer"]["pretokenizers"]
split["pattern"] = {"Regex": QWEN35_PATTERN}
with open(sys.argv[2], "w", encoding="utf-8") as f:
    json.dump(tokenizer, f, ensure_ascii=False)
EOF
cat >"$made/config.json" <<'EOF'
{
  "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 4096, "hidden_size": 128,
  "intermediate_size": 320, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
  "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
  "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.02,
  "bos_token_id": null, "eos_token_id": 4072, "pad_token_id": 4070, "torch_dtype": "bfloat16"
}
EOF
"$strata" init --config "$made" --out "$out" --seed 1
