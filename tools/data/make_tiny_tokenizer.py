#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write everything of models/tiny-qwen3 but its weights: tokenizer, chat template and configuration files.

usage: python3 tools/data/make_tiny_tokenizer.py OUT_DIR

Needs `pip install tokenizers==0.23.3`. A byte-level BPE of 4,096 entries in Qwen3's form (same normalizer,
pre-tokenizer and special tokens, which stand at the end), trained on tools/data/make_tiny_corpus.py's text and, so that
everyday English is not spelled byte by byte, on the prose of Python's own help texts (the committed file was made
with Python 3.11). tests/text and `strata train` read the result.
"""
import json
import os
import re
import sys
from pydoc_data.topics import topics

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import make_tiny_corpus

VOCAB_SIZE = 4096
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
           "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
           "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
         "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call these functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nA call is a JSON object with name and arguments:\\n<tool_call>\\n' }}
    {{- '{"name": "...", "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role in ['system', 'user', 'assistant'] %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in (message.tool_calls or []) %}
            {%- if call.function %}
                {%- set call = call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": ' + (call.name | tojson) + ', "arguments": ' }}
            {{- (call.arguments if call.arguments is string else (call.arguments | tojson)) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def prose():
    """Python's help texts without code: the lines that are words and plain punctuation."""
    for name in sorted(topics):
        for line in topics[name].splitlines():
            if re.fullmatch(r"[A-Za-z ,.'-]{20,}", line.strip()):
                yield line.strip()


def training_text():
    yield from make_tiny_corpus.documents(20000, seed=1)
    yield from prose()


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - len(SPECIAL) - len(ADDED), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    # Special tokens are cut out before training, so that no merge crosses or spells one.
    special = re.compile("|".join(re.escape(token) for token in SPECIAL + ADDED))
    tokenizer.train_from_iterator((part for text in training_text() for part in special.split(text) if part), trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([tokenizers.AddedToken(t, normalized=False, special=False) for t in ADDED])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        sys.exit(f"make_tiny_tokenizer: {tokenizer.get_vocab_size()} entries, want {VOCAB_SIZE}; too little text?")
    return tokenizer


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(os.path.join(out, "tokenizer.json"))
    end_of_text, end_of_turn = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    added = {str(tokenizer.token_to_id(t)): {
        "content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
        "special": t in SPECIAL} for t in SPECIAL + ADDED}
    files = {
        "tokenizer_config.json": {
            "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
            "additional_special_tokens": SPECIAL[1:], "bos_token": None, "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 8192,
            "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None},
        "generation_config.json": {
            "bos_token_id": end_of_text, "do_sample": False, "eos_token_id": [end_of_turn, end_of_text],
            "pad_token_id": end_of_text},
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": end_of_text, "eos_token_id": end_of_turn, "head_dim": 64, "hidden_act": "silu",
            "hidden_size": 192, "initializer_range": 0.02, "intermediate_size": 640,
            "max_position_embeddings": 8192, "model_type": "qwen3", "num_attention_heads": 4,
            "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 1000000, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
            "use_sliding_window": False, "vocab_size": VOCAB_SIZE}}
    for name, value in files.items():
        with open(os.path.join(out, name), "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2) + "\n")
    with open(os.path.join(out, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(TEMPLATE)


if __name__ == "__main__":
    main()
