#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the GGUF files that strata writes against llama.cpp: base, merged and adapter files of the goldens' models.

usage: python tools/check/compare_llama_cpp.py STRATA          needs tools/requirements/llama_cpp.txt, which builds llama.cpp

Of each model F16 and BF16 files are written. llama.cpp chooses 64 tokens by greed; strata's logits (f32) of the same
tokens, from the same file, must differ by at most twice what llama.cpp's own F16 and BF16 files differ by. Two logits
that are off by so much are off against each other by twice that: where strata prefers another token than llama.cpp, its
own logits of the two must be no further apart.

Of a model with experts llama.cpp may choose other experts than strata where its router's scores of them are closer
together than its own F16 and BF16 files have them: one of two right answers, which differ as a whole. Which experts it
chose is read from it, each such choice must be as close as that, and the logits of a plain forward in float64, held
against strata's with strata's choices, must be within the same bar with llama.cpp's, at every position.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden")
# golden, config that GGUF can say (tools/golden/make_gguf.py), adapter
MODELS = [("llama2", None, "a"), ("llama31", None, "b"), ("qwen2", None, "b"), ("qwen3", None, "a"), ("qwen3_moe", None, "b"),
          ("gemma3", "gemma3.json", "b")]
# Of goldens that llama.cpp cannot run (a layer without experts), random weights of another config.
ALTERED = {"qwen3_moe": {"mlp_only_layers": [], "initializer_range": 0.25}}
EXPERTS = ("qwen3_moe",)
PROMPT = [3, 17, 29, 5, 41, 11, 8, 60]
NUM_TOKENS = 64
# Products of a few hundred terms in f32, and its exp: of the largest logit.
F32_BAR = 2e-5


def logits_in(path):
    """The logits of a probe's file, which are F32."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        begin = f.tell()
        name = next(name for name in header if "logits" in name)
        f.seek(begin + header[name]["data_offsets"][0])
        shape = header[name]["shape"]
        return np.frombuffer(f.read(4 * int(np.prod(shape))), dtype="<f4").reshape(shape)


def run(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")


class Routing:
    """Scores [layer][token, expert] and choices of experts of every pass of llama.cpp, as it ran them."""
    GGML = ctypes.CDLL(os.path.join(os.path.dirname(llama_cpp.__file__), "lib", "libggml-base.so"))
    GGML.ggml_get_name.restype = ctypes.c_char_p
    GGML.ggml_get_name.argtypes = [ctypes.c_void_p]
    GGML.ggml_nbytes.restype = ctypes.c_size_t
    GGML.ggml_nbytes.argtypes = [ctypes.c_void_p]
    GGML.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    KINDS = {b"ffn_moe_logits": np.float32, b"ffn_moe_argsort": np.int32}

    def __init__(self):
        self.seen = {}  # by kind and layer: the passes' values, one behind the other
        self.callback = llama_cpp.llama_cpp.ggml_backend_sched_eval_callback(self.take)

    def take(self, tensor, is_question, _):
        kind, _, layer = self.GGML.ggml_get_name(tensor).partition(b"-")
        if kind not in self.KINDS:
            return not is_question
        if not is_question:
            values = np.empty(self.GGML.ggml_nbytes(tensor) // 4, self.KINDS[kind])
            self.GGML.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
            self.seen.setdefault((kind, int(layer)), []).append(values)
        return True

    def of(self, kind, layer, experts):
        return np.concatenate(self.seen[kind, layer]).reshape(-1, experts)


def open_llama(path, lora, routing):
    """The model in llama.cpp, which tells `routing` how it routes."""
    module = llama_cpp.llama_cpp
    plain = module.llama_context_default_params

    def params():
        out = plain()
        out.cb_eval = routing.callback
        return out
    module.llama_context_default_params = params
    try:
        return llama_cpp.Llama(path, n_ctx=128, logits_all=True, verbose=False, n_threads=2, lora_path=lora)
    finally:
        module.llama_context_default_params = plain


def greedy(path, prompt):
    """The tokens that llama.cpp chooses, its logits [prompt + chosen - 1, V] and its routing."""
    routing = Routing()
    llama = open_llama(*path, routing)
    tokens = list(prompt)
    llama.eval(tokens)
    for _ in range(NUM_TOKENS):
        chosen = int(np.argmax(llama.scores[llama.n_tokens - 1]))
        tokens.append(chosen)
        if len(tokens) < len(prompt) + NUM_TOKENS:
            llama.eval([chosen])
    return tokens, np.array(llama.scores[:len(tokens) - 1]), routing


def forced(path, tokens):
    """llama.cpp's logits of given tokens, and its routing."""
    routing = Routing()
    llama = open_llama(*path, routing)
    llama.eval(tokens[:-1])
    return np.array(llama.scores[:len(tokens) - 1]), routing


class PlainExperts:
    """A qwen3moe file in float64, with an adapter's file or without, and experts that may be given."""

    def __init__(self, path, lora):
        reader = gguf.GGUFReader(path)
        field = lambda key: reader.fields[f"qwen3moe.{key}"].contents()
        self.layers, self.used = field("block_count"), field("expert_used_count")
        self.experts, self.eps = field("expert_count"), field("attention.layer_norm_rms_epsilon")
        self.heads, self.kv_heads = field("attention.head_count"), field("attention.head_count_kv")
        self.head, self.theta = field("attention.key_length"), field("rope.freq_base")
        self.w = self.tensors(reader)
        if lora:
            adapter = gguf.GGUFReader(lora)
            factors = self.tensors(adapter)
            alpha = adapter.fields["adapter.lora.alpha"].contents()
            for name in [n[:-len(".lora_a")] for n in factors if n.endswith(".lora_a")]:
                a, b = factors[name + ".lora_a"], factors[name + ".lora_b"]
                self.w[name] = self.w[name] + alpha / a.shape[-2] * (a @ b.T if name == "token_embd.weight" else b @ a)

    @staticmethod
    def tensors(reader):
        return {t.name: np.float64(gguf.quants.dequantize(t.data, t.tensor_type)).reshape(t.shape[::-1])
                for t in reader.tensors}

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[weight]

    def rotated(self, x):
        """[T, heads, H], pairs half a head apart."""
        half = self.head // 2
        angles = np.arange(len(x))[:, None] * self.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)

    def attention(self, x, block):
        of = lambda name, heads: (x @ self.w[f"{block}attn_{name}.weight"].T).reshape(len(x), heads, self.head)
        q = self.rotated(self.norm(of("q", self.heads), block + "attn_q_norm.weight"))
        k = self.rotated(self.norm(of("k", self.kv_heads), block + "attn_k_norm.weight"))
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(of("v", self.kv_heads), group, 1)
        scores = np.einsum("tnh,snh->nts", q, k) / np.sqrt(self.head)
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        context = np.einsum("nts,snh->tnh", softmax(scores), v)
        return context.reshape(len(x), -1) @ self.w[block + "attn_output.weight"].T

    def moe(self, x, block, scores, chosen):
        out = np.zeros_like(x)
        gate, up, down = (self.w[f"{block}ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
        shares = np.take_along_axis(softmax(scores), chosen, -1)
        shares /= shares.sum(-1, keepdims=True)
        for t, row in enumerate(x):
            for expert, share in zip(chosen[t], shares[t]):
                inner = gate[expert] @ row
                out[t] += share * (down[expert] @ (inner / (1 + np.exp(-inner)) * (up[expert] @ row)))
        return out

    def run(self, tokens, choices=None):
        """Logits, the router's scores and the experts of every layer; `choices` [layer][T, K] or its own."""
        x = self.w["token_embd.weight"][tokens]
        scores, chosen = [], []
        for layer in range(self.layers):
            block = f"blk.{layer}."
            x = x + self.attention(self.norm(x, block + "attn_norm.weight"), block)
            inner = self.norm(x, block + "ffn_norm.weight")
            scores.append(inner @ self.w[block + "ffn_gate_inp.weight"].T)
            own = np.argsort(-scores[-1], kind="stable")[:, :self.used]
            chosen.append(own if choices is None else choices[layer])
            x = x + self.moe(inner, block, scores[-1], chosen[-1])
        return self.norm(x, "output_norm.weight") @ self.w["output.weight"].T, scores, chosen


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Experts:
    """What llama.cpp routed in the F16 and in the BF16 file, and what is to be compared with that."""

    def __init__(self, tokens, files, routings):
        self.tokens = np.array(tokens[:-1])
        self.plain = {kind: PlainExperts(*path) for kind, path in files.items()}
        some = self.plain["f16"]
        layers = range(some.layers)
        self.scores = {k: [r.of(b"ffn_moe_logits", i, some.experts) for i in layers] for k, r in routings.items()}
        self.choices = {k: [r.of(b"ffn_moe_argsort", i, some.experts)[:, :some.used] for i in layers]
                        for k, r in routings.items()}
        # [layer + 1, token]: what reaches this layer has gone through the same experts in both files.
        apart = [np.any(np.sort(f) != np.sort(b), axis=1) for f, b in zip(self.choices["f16"], self.choices["bf16"])]
        before = np.cumsum([np.zeros_like(apart[0]), *apart], axis=0) > 0
        self.alike = ~np.maximum.accumulate(before, axis=1)
        noise = max(np.abs(f - b)[same].max(initial=0) for f, b, same in
                    zip(self.scores["f16"], self.scores["bf16"], self.alike))
        self.allowed = 2 * noise  # of a score

    def replace(self, kind, own):
        """Strata's logits as they are with llama.cpp's experts; faults; and what is to be said."""
        logits, scores, chosen = self.plain[kind].run(self.tokens)
        apart = np.abs(logits - own).max() / np.abs(own).max()
        forced_logits, scores, _ = self.plain[kind].run(self.tokens, self.choices[kind])
        off = max(np.abs(a - b).max() for a, b in zip(scores, self.scores[kind]))
        gaps = []
        for row, theirs in zip(np.concatenate(scores), np.concatenate(self.choices[kind])):
            others = np.setdiff1d(np.arange(len(row)), theirs)
            gap = row[others].max() - row[theirs].min()
            gaps += [gap] if gap > 0 else []
        fine = apart <= F32_BAR and off <= self.allowed and all(g <= 2 * self.allowed for g in gaps)
        said = (f"; experts: {len(gaps)} of {len(chosen) * len(self.tokens)} choices differ, scores of those up to "
                f"{max(gaps, default=0):.1e} apart, scores off by {off:.1e} of {self.allowed:.1e}, plain forward {apart:.0e}")
        return own + (forced_logits - logits), fine, said


def ours(strata, folder, model, tokens, adapter=None):
    request = {"sequences": [{"tokens": tokens[:-1]}], "want": ["logits"]}
    if adapter:
        request["sequences"][0]["adapter"] = 1
    with open(os.path.join(folder, "r.json"), "w") as f:
        json.dump(request, f)
    out = os.path.join(folder, "o.safetensors")
    run(strata, "probe", "--model", model, *(["--adapter", adapter] if adapter else []), "--dtype", "f32", "--request",
        f.name, "--out", out)
    return logits_in(out)


def model_of(strata, golden, config, folder):
    source = os.path.join(GOLDEN, golden, "model")
    if golden in ALTERED:
        with open(os.path.join(source, "config.json")) as f:
            changed = json.load(f) | ALTERED[golden]
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(changed, f)
        run(strata, "init", "--config", f.name, "--dtype", "f32", "--seed", "1", "--out", os.path.join(folder, "model"))
        return os.path.join(folder, "model")
    if config is None:
        return source
    model = os.path.join(folder, "model")
    os.makedirs(model)
    for name in os.listdir(source):
        os.symlink(os.path.join(source, name), os.path.join(model, name))
    os.remove(os.path.join(model, "config.json"))
    os.symlink(os.path.join(GOLDEN, "gguf", config), os.path.join(model, "config.json"))
    return model


def check_files(strata, folder, name, files, adapter, has_experts):
    """Faults of a model's F16 and BF16 files."""
    tokens, theirs, routings = {}, {}, {}
    tokens, theirs["f16"], routings["f16"] = greedy(files["f16"], PROMPT)
    theirs["bf16"], routings["bf16"] = forced(files["bf16"], tokens)
    experts = Experts(tokens, files, routings) if has_experts else None
    same = experts.alike[-1] if experts else np.ones(len(tokens) - 1, bool)
    allowed = 2 * np.abs(theirs["f16"] - theirs["bf16"])[same].max()
    chosen = slice(len(PROMPT) - 1, None)
    faults = 0
    for kind, logits in theirs.items():
        own = ours(strata, folder, files[kind][0], tokens, adapter)
        fine, said = True, ""
        if experts:
            own, fine, said = experts.replace(kind, own)
        differences = np.abs(own - logits).max(axis=1)
        rows = np.arange(len(own))
        margins = (own.max(axis=1) - own[rows, logits.argmax(axis=1)])[chosen]
        fine = fine and differences.max() <= allowed and margins.max() <= 2 * allowed
        faults += not fine
        print(f"{name} {kind:4} largest difference {differences.max():.2e}, median {np.median(differences):.2e}, allowed "
              f"{allowed:.2e}; {(margins == 0).sum()} of {NUM_TOKENS} tokens equal, the others' two best up to "
              f"{margins.max():.1e} apart{said}{'' if fine else '  FAILED'}", flush=True)
    return faults


def check(strata, golden, config, adapter):
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        model, adapter = model_of(strata, golden, config, folder), os.path.join(GOLDEN, golden, adapter)
        files = {}
        for kind in ("f16", "bf16"):
            for name, more in (("base", []), ("merged", ["--adapter", adapter])):
                path = os.path.join(folder, f"{name}.{kind}.gguf")
                run(strata, "convert", "--model", model, *more, "--to", "gguf", "--type", kind, "--out", path)
                files[name, kind] = (path, None)
        lora = os.path.join(folder, "lora.gguf")
        run(strata, "convert", "--model", model, "--adapter", adapter, "--to", "gguf-lora", "--out", lora)
        for kind in ("f16", "bf16"):
            files["adapter", kind] = (files["base", kind][0], lora)
        for name in ("base", "merged", "adapter"):
            mine = {kind: files[name, kind] for kind in ("f16", "bf16")}
            faults += check_files(strata, folder, f"{golden:10} {name:8}", mine, adapter if name == "adapter" else None,
                                  golden in EXPERTS)
    return faults


def main():
    faults = sum(check(os.path.abspath(sys.argv[1]), *row) for row in MODELS)
    print(f"llama.cpp by llama-cpp-python {llama_cpp.__version__}: " + ("passed" if faults == 0 else f"{faults} faults"))
    return faults != 0


if __name__ == "__main__":
    sys.exit(main())
