#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What Qwen3.5's own layer of multi-token prediction saves: pre-trains a model of Qwen3.5's shape with that layer on the
# text of models/tiny-qwen3, then samples each prompt without drafts and with them, in turn, and prints tokens a second
# and how many drafts were accepted. Fails where a text differs.
# usage: tools/run/mtp_demo.sh PROGRAM [SIZE [STEPS [OUT_DIR]]]
# SIZE: small (3.5 M parameters; some minutes), or large (49 M: 660 GFLOP a step, so 250 steps take 30 minutes where two
# cores give 92 GFLOP/s). Resumes.
set -euo pipefail
cd "$(dirname "$0")/../.."
strata=${1:?usage: tools/run/mtp_demo.sh PROGRAM [SIZE [STEPS [OUT_DIR]]]}
size=${2:-large}
case "$size" in
  small) width=192 inner=512 layers=4 heads=4 steps=${3:-200} ;;
  large) width=512 inner=1536 layers=12 heads=8 steps=${3:-250} ;;
  *) echo "SIZE: got $size, want small or large" >&2; exit 2 ;;
esac
out=${4:-out/mtp-$size}
mkdir -p "$out"
[ -f out/tiny-corpus.jsonl ] || python3 tools/data/make_tiny_corpus.py out/tiny-corpus.jsonl --documents 100000
if [ ! -f "$out/init/model.safetensors" ]; then
  mkdir -p "$out/shape"
  cp models/tiny-qwen3/{tokenizer,tokenizer_config,generation_config}.json models/tiny-qwen3/chat_template.jinja "$out/shape"
  cat >"$out/shape/config.json" <<EOF
{
  "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 4096, "hidden_size": $width,
  "intermediate_size": $inner, "num_hidden_layers": $layers, "num_attention_heads": $heads, "num_key_value_heads": 2,
  "head_dim": 64, "linear_num_key_heads": $heads, "linear_num_value_heads": $heads, "linear_key_head_dim": 64,
  "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "attention_bias": false,
  "rope_parameters": {"rope_type": "default", "rope_theta": 1000000, "partial_rotary_factor": 0.25},
  "mtp_num_hidden_layers": 1, "hidden_act": "silu", "initializer_range": 0.02, "bos_token_id": 4070,
  "eos_token_id": 4072, "torch_dtype": "bfloat16"
}
EOF
  "$strata" init --config "$out/shape" --mtp --out "$out/init" --seed 0
fi
"$strata" train --method full --model "$out/init" --data out/tiny-corpus.jsonl --out "$out/model" --resume \
  --lr 1e-3 --steps "$steps" --warmup-steps 20 --batch-tokens 2048 --micro-tokens 2048 --weight-decay 0.01 \
  --eval-fraction 0.001 --save-every 50
answer() { # PROMPT [OPTION...]
  "$strata" generate --model "$out/model" --prompt "$1" --max-tokens 160 --temperature 0 "${@:2}" 2>"$out/figures"
}
for question in "Tell me a story." "What is 3 plus 4?" "Count to twenty." "What does a cow say?"; do
  prompt=$(printf '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n' "$question")
  plain=$(answer "$prompt")
  echo "$question $(tail -n 1 "$out/figures")"
  for drafts in 1 2 3; do
    drafted=$(answer "$prompt" --speculate mtp --draft-tokens "$drafts")
    echo "  $drafts at once: $(tail -n 1 "$out/figures")"
    [ "$plain" = "$drafted" ] || { echo "mtp_demo: drafts changed the text" >&2; exit 1; }
  done
done
