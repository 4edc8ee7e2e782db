# SPDX-License-Identifier: Apache-2.0
"""Writes the bundled model as a GGUF file, weights, tokenizer and template: a stand-in for one that is downloaded.

usage: tiny_gguf.py MODEL_DIR OUT.gguf     of a Qwen3 with tied embeddings in BF16; needs nothing but Python
"""
import json
import pathlib
import struct
import sys

UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
BF16 = 30
ALIGNMENT = 32
OF_LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NORMAL, CONTROL = 1, 3  # kinds of tokens


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_of(kind, value):
    if kind == STRING:
        return text(value)
    return struct.pack({UINT32: "<I", FLOAT32: "<f", BOOL: "<?", INT32: "<i"}[kind], value)


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value_of(kind, value)


def array(key, kind, values):
    head = text(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
    return head + b"".join(value_of(kind, value) for value in values)


def name_of(name):
    for whole, renamed in (("model.embed_tokens.weight", "token_embd.weight"), ("model.norm.weight", "output_norm.weight")):
        if name == whole:
            return renamed
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{OF_LAYER[rest.removesuffix('.weight')]}.weight"


def entries(folder):
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    names = {number: piece for piece, number in tokenizer["model"]["vocab"].items()} | added
    tokens = [names.get(number, f"[unused {number}]") for number in range(config["vocab_size"])]
    kinds = [NORMAL if number in names and number not in added else CONTROL for number in range(len(tokens))]
    merges = [" ".join(merge) for merge in tokenizer["model"]["merges"]]
    return [entry("general.architecture", STRING, "qwen3"), entry("general.name", STRING, folder.name),
            entry("qwen3.block_count", UINT32, config["num_hidden_layers"]),
            entry("qwen3.context_length", UINT32, config["max_position_embeddings"]),
            entry("qwen3.embedding_length", UINT32, config["hidden_size"]),
            entry("qwen3.feed_forward_length", UINT32, config["intermediate_size"]),
            entry("qwen3.attention.head_count", UINT32, config["num_attention_heads"]),
            entry("qwen3.attention.head_count_kv", UINT32, config["num_key_value_heads"]),
            entry("qwen3.attention.key_length", UINT32, config["head_dim"]),
            entry("qwen3.attention.value_length", UINT32, config["head_dim"]),
            entry("qwen3.attention.layer_norm_rms_epsilon", FLOAT32, config["rms_norm_eps"]),
            entry("qwen3.rope.freq_base", FLOAT32, config["rope_theta"]),
            entry("tokenizer.ggml.model", STRING, "gpt2"), entry("tokenizer.ggml.pre", STRING, "qwen2"),
            array("tokenizer.ggml.tokens", STRING, tokens), array("tokenizer.ggml.token_type", INT32, kinds),
            array("tokenizer.ggml.merges", STRING, merges),
            entry("tokenizer.ggml.eos_token_id", UINT32, config["eos_token_id"]),
            entry("tokenizer.ggml.add_bos_token", BOOL, False),
            entry("tokenizer.chat_template", STRING, (folder / "chat_template.jinja").read_text())]


def padded(raw):
    return raw + b"\0" * (-len(raw) % ALIGNMENT)


def write(folder, out):
    raw = (folder / "model.safetensors").read_bytes()
    head_size, = struct.unpack_from("<Q", raw)
    head = json.loads(raw[8:8 + head_size])
    head.pop("__metadata__", None)
    infos, data = b"", b""
    for name, tensor in head.items():
        assert tensor["dtype"] == "BF16", name
        shape = tensor["shape"][::-1]  # the fastest dimension first
        infos += text(name_of(name)) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, BF16, len(data))
        begin, end = tensor["data_offsets"]
        data += padded(raw[8 + head_size + begin:8 + head_size + end])
    keys = entries(folder)
    out.write_bytes(padded(b"GGUF" + struct.pack("<IQQ", 3, len(head), len(keys)) + b"".join(keys) + infos) + data)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
