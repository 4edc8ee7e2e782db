#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare Strata with llama.cpp on GGUF files: logits, greedy text and tokens.

usage: python tools/golden/compare_llama_cpp.py models STRATA FILE.gguf...     and two of Qwen3.5, made here
       python tools/golden/compare_llama_cpp.py greedy STRATA FILE.gguf "TEXT"...
       python tools/golden/compare_llama_cpp.py tokens STRATA VOCAB.gguf... [--count 2000] [--seed 1]

models: random ids through both. llama.cpp rounds activations to the types of its products (8 bits beside quantised
  weights), so each file is also run there with its weights dequantised to F32 by gguf-py. The two runs of llama.cpp are
  apart by its own noise; Strata in f32 must be within F32_BAR of the F32 one, and within NOISE_BAR times that noise of
  the other.
greedy: text of a model with a tokenizer, from the same ids, in the same two ways: with F32 weights every token is the
  same; with the file's own up to the first place where llama.cpp's two best are closer than its noise.
tokens: each text's ids. The truth is Hugging Face's tokenizers, built here from the file's tokens and merges with the
  patterns of transformers, where it has one; else llama.cpp. Where llama.cpp has others than the truth, the reason is
  named. The last of the files is also read under every other name of `tokenizer.ggml.pre` that has a truth.

Needs tools/requirements/llama_cpp.txt; tools/run/compare_llama_cpp.sh installs it and runs all of this.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import unicodedata

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import gguf
import llama_cpp
import numpy as np

import text_samples
from compare_probe import read_safetensors, relative_l2

# Relative L2 of logits. Products of a few hundred terms and approximations of exp in f32; a tiny random model doubles
# what a layer adds a few times.
F32_BAR = 2e-5
NOISE_BAR = 1.5
# llama.cpp takes gelu from a table in f16: 11 bits a value, in each of a few layers.
GELU_BAR = 1e-3
LENGTHS = (3, 17, 40)
# Of tests/golden/gguf: what llama.cpp does not have.
DENSE, UNEQUAL = "a dense layer among those of experts", "delta nets whose keys and values differ in width"
NOT_LOADED = {"qwen3_moe.gguf": DENSE, "qwen35.gguf": UNEQUAL, "qwen35_bf16.gguf": UNEQUAL, "qwen35moe.gguf": UNEQUAL}
# Loaded, and computed otherwise: the ends of YaRN's ramp, which transformers does not round for gpt-oss.
ROUNDED = ("gpt_oss.gguf",)
# Norms of latents have this one at Hugging Face, whatever rms_norm_eps is; at llama.cpp they have that of the file.
LATENT_EPS = 1e-6


SAID = []  # what llama.cpp says of a model
LISTEN = llama_cpp.llama_log_callback(lambda _, text, __: SAID.append(text.decode(errors="replace")))


class Model:
    """A file in llama.cpp, its cache in f32."""

    def __init__(self, path, vocab_only=False):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only, params.n_gpu_layers = vocab_only, 0
        params.use_extra_bufts = False  # llama.cpp's products by AMX end in a segmentation fault with Q4_1
        SAID.clear()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError("llama.cpp does not load it: " + "".join(SAID[-3:]).strip().replace("\n", "; "))
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def __del__(self):
        if getattr(self, "model", None):
            llama_cpp.llama_model_free(self.model)

    def logits(self, tokens):
        """[tokens, vocabulary] of one sequence."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = max(32, len(tokens))
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = 0
        SAID.clear()
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("llama.cpp makes no context: " + "".join(SAID[-3:]).strip())
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        values = llama_cpp.llama_get_logits(context)
        out = np.ctypeslib.as_array(values, shape=(len(tokens), self.size)).copy()
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        return out

    def greedy(self, prompt, count):
        """[(token, margin over the next best)]."""
        tokens, out = list(prompt), []
        for _ in range(count):
            row = self.logits(tokens)[-1]
            first, second = np.argsort(-row, kind="stable")[:2]
            out.append((int(first), float(row[first] - row[second])))
            tokens.append(int(first))
        return out

    def tokenize(self, text):
        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 16))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), False, True)
        return list(ids[:count])


def files_of(path):
    """All parts of a split model."""
    stem, of, rest = path.rpartition("-of-")
    if not of or not rest[:5].isdigit():
        return [path]
    return [f"{stem[:-5]}{part + 1:05}-of-{rest}" for part in range(int(rest[:5]))]


def arch_of(path):
    return gguf.GGUFReader(files_of(path)[0]).fields["general.architecture"].contents()


def rewrite(path, out, wide):
    """The same model as one file, of F32 tensors where `wide`; of deepseek2 with the only eps that both take alike."""
    readers = [gguf.GGUFReader(part) for part in files_of(path)]
    fields = readers[0].fields
    writer = gguf.GGUFWriter(out, fields["general.architecture"].contents())
    for field in fields.values():
        if field.name.startswith(("GGUF.", "split.")) or field.name == "general.architecture":
            continue
        value = field.contents()
        if field.name == "deepseek2.attention.layer_norm_rms_epsilon":
            value = LATENT_EPS
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        if sub is None or len(field.data):
            writer.add_key_value(field.name, value, field.types[0], sub_type=sub)
    for tensor in (t for reader in readers for t in reader.tensors):
        if not wide:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values.reshape(list(reversed(tensor.shape.tolist()))), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hybrid(path, experts):
    """A random Qwen3.5 in the shapes that llama.cpp has: keys and values of one width, every second layer attends."""
    arch = "qwen35moe" if experts else "qwen35"
    width, head, keys, values, heads, dim, inner = 24, 8, 2, 4, 2, 16, 20
    w = gguf.GGUFWriter(path, arch)
    w.add_tokenizer_model("none")
    w.add_vocab_size(70)
    w.add_context_length(128)
    w.add_embedding_length(width)
    w.add_block_count(4)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(1)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e4)
    w.add_rope_dimension_count(dim // 2)
    w.add_rope_dimension_sections([2, 1, 1, 0])
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(head)
    w.add_ssm_group_count(keys)
    w.add_ssm_time_step_rank(values)
    w.add_ssm_inner_size(head * values)
    w.add_full_attention_interval(2)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(2)
        w.add_expert_feed_forward_length(inner)
        w.add_expert_shared_feed_forward_length(inner)
    rng = np.random.default_rng(7)
    matrix = lambda name, *shape: w.add_tensor(name, (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32))
    norm = lambda name, n: w.add_tensor(name, (1 + 0.2 * rng.standard_normal(n)).astype(np.float32))
    matrix("token_embd.weight", 70, width)
    matrix("output.weight", 70, width)
    norm("output_norm.weight", width)
    for layer in range(4):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight", width)
        norm(block + "post_attention_norm.weight", width)
        if layer % 2:
            matrix(block + "attn_q.weight", 2 * heads * dim, width)
            matrix(block + "attn_k.weight", dim, width)
            matrix(block + "attn_v.weight", dim, width)
            matrix(block + "attn_output.weight", width, heads * dim)
            norm(block + "attn_q_norm.weight", dim)
            norm(block + "attn_k_norm.weight", dim)
        else:
            rows = (2 * keys + values) * head
            matrix(block + "attn_qkv.weight", rows, width)
            matrix(block + "attn_gate.weight", values * head, width)
            matrix(block + "ssm_alpha.weight", values, width)
            matrix(block + "ssm_beta.weight", values, width)
            matrix(block + "ssm_conv1d.weight", rows, 4)
            w.add_tensor(block + "ssm_a", -rng.uniform(0.5, 4, values).astype(np.float32))
            w.add_tensor(block + "ssm_dt.bias", rng.standard_normal(values).astype(np.float32))
            norm(block + "ssm_norm.weight", head)
            matrix(block + "ssm_out.weight", width, values * head)
        if experts:
            matrix(block + "ffn_gate_inp.weight", experts, width)
            matrix(block + "ffn_gate_exps.weight", experts, inner, width)
            matrix(block + "ffn_up_exps.weight", experts, inner, width)
            matrix(block + "ffn_down_exps.weight", experts, width, inner)
            matrix(block + "ffn_gate_inp_shexp.weight", width)
        end = "_shexp.weight" if experts else ".weight"
        matrix(block + "ffn_gate" + end, inner, width)
        matrix(block + "ffn_up" + end, inner, width)
        matrix(block + "ffn_down" + end, width, inner)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def probe(strata, path, request, work):
    files = [os.path.join(work, name) for name in ("request.json", "out.safetensors")]
    with open(files[0], "w", encoding="utf-8") as f:
        json.dump(request, f)
    run(strata, "probe", "--model", path, "--request", files[0], "--out", files[1], "--dtype", "f32")
    return read_safetensors(files[1])


def compare_model(strata, path, work):
    name = os.path.basename(path)
    narrow_path, wide_path = (os.path.join(work, kind + ".gguf") for kind in ("narrow", "wide"))
    if name in ROUNDED:
        print(f"---- {name}: llama.cpp rounds the ends of YaRN's ramp", flush=True)
        return True
    is_latent = arch_of(path) == "deepseek2"
    rewrite(path, wide_path, wide=True)
    if is_latent:
        rewrite(path, narrow_path, wide=False)
        path = narrow_path
    try:
        own, wide = Model(files_of(path)[0]), Model(wide_path)
    except RuntimeError as refusal:
        print(f"{'----' if name in NOT_LOADED else 'FAIL'} {name}: {NOT_LOADED.get(name, refusal)}", flush=True)
        return name in NOT_LOADED
    rng = np.random.default_rng(0)
    sequences = [[int(t) for t in rng.integers(0, own.size, n)] for n in LENGTHS]
    got = probe(strata, path, {"sequences": [{"tokens": s} for s in sequences], "want": ["logits"]}, work)["logits"]
    narrow, exact = (np.concatenate([m.logits(s) for s in sequences]) for m in (own, wide))
    noise, error, other = relative_l2(narrow, exact), relative_l2(got, exact), relative_l2(got, narrow)
    bar = GELU_BAR if arch_of(path) == "gemma3" else F32_BAR
    right = error <= bar and other <= max(NOISE_BAR * noise, bar)
    print(f"{'ok  ' if right else 'FAIL'} {name}: F32 weights {error:.1e}, its own {other:.1e}, "
          f"llama.cpp's noise {noise:.1e}", flush=True)
    return right


def compare_greedy(strata, path, texts, work, count=40):
    plain = os.path.join(work, "wide.gguf")
    rewrite(path, plain, wide=True)
    own, wide = Model(path), Model(plain)
    prompts = [own.tokenize(text) for text in texts]
    noise = max(float(np.abs(own.logits(p) - wide.logits(p)).max()) for p in prompts)
    sample = [{"tokens": p, "max_tokens": count, "temperature": 0} for p in prompts]
    got = probe(strata, path, {"sequences": [{"tokens": prompts[0]}], "want": [], "sample": sample}, work)
    right = True
    for i, prompt in enumerate(prompts):
        ids = [int(t) for t in got[f"sample.{i}.tokens"]]
        exact, narrow = wide.greedy(prompt, len(ids)), own.greedy(prompt, len(ids))
        same = [t for t, _ in exact] == ids
        first = next((k for k, (t, _) in enumerate(narrow) if t != ids[k]), None)
        excused = first is None or narrow[first][1] < 2 * noise
        right &= same and excused
        print(f"{'ok  ' if same and excused else 'FAIL'} greedy {i}: F32 weights {'all' if same else 'not all'} of {len(ids)} tokens; its own "
              + (f"all" if first is None else f"the first {first}, then two within {narrow[first][1]:.2f} of each other")
              + f" (llama.cpp's noise {noise:.2f})", flush=True)
    return right


# transformers 5.23, integrations/gguf/gguf_tokenizer_mapping.py; the tokenizer.json files of the models.
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + ENDS
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + ENDS
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + ENDS
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
GPT4O = CASED % (CONTRACTIONS + "?", CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + ENDS
TEKKEN = CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + ENDS
# pre: (patterns, GPT-2's own after them, whole tokens are not merged, NFC)
TRUTH = {"llama-bpe": ([LLAMA3], False, True, False), "qwen2": ([QWEN2], False, False, True), "qwen35": ([QWEN35], False, False, True),
         "gpt-4o": ([GPT4O], False, False, False), "tekken": ([TEKKEN], False, True, False), "gpt-2": ([], True, False, False),
         **{name: ([r"\p{N}"], True, False, False) for name in ("starcoder", "refact", "command-r", "smollm", "exaone")}}


# Where llama.cpp has other ids, by name; what is left counts as unexplained.
REASONS = {"it does not bring text to NFC": lambda text, pre: TRUTH[pre][3] and unicodedata.normalize("NFC", text) != text,
           "</s> is a control token there": lambda text, pre: "</s>" in text}
APPROXIMATED = ("gpt-4o", "tekken")  # by its own patterns, which know capitals of ASCII alone and no marks
# A space of two columns counts as any other space there, and as one of the pattern's marks here.
SPACES_ONLY = {"deepseek-llm": "\u3000"}
NOT_COMPARED = {"phi3": "control tokens take the spaces behind them by the model's name; phi3 is no architecture here"}


def hugging_face(fields, pre):
    """The tokenizer of the file's tokens and merges as transformers builds it, or nothing where it has no pattern."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
    if pre not in TRUTH:
        return None
    patterns, by_gpt2, whole, nfc = TRUTH[pre]
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    vocab = {}
    for i, token in enumerate(tokens):
        vocab.setdefault(token, i)
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole))
    steps = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_gpt2))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    control, user = (int(t) for t in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types) if k == control])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, types) if k == user])
    return tokenizer


def texts_of(count, seed):
    return text_samples.samples(count - count // 4, seed) + text_samples.family_samples(count // 4, seed)


def strata_tokens(strata, path, texts, work):
    files = [os.path.join(work, name) for name in ("in.jsonl", "out.jsonl")]
    with open(files[0], "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"text": t, "add_special": False}) + "\n" for t in texts)
    run(strata, "tokenize", "--tokenizer", path, "--in", files[0], "--out", files[1])
    with open(files[1], encoding="utf-8") as f:
        return [json.loads(line)["ids"] for line in f]


def renamed(path, pre, out):
    """The vocabulary of a file under another name of `pre`."""
    fields = gguf.GGUFReader(path).fields
    w = gguf.GGUFWriter(out, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(fields["tokenizer.ggml.tokens"].contents())
    w.add_token_types(fields["tokenizer.ggml.token_type"].contents())
    w.add_token_merges(fields["tokenizer.ggml.merges"].contents())
    w.add_add_bos_token(False)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def explain(texts, pre):
    """What is to be said of texts to which llama.cpp gives others than the truth."""
    left, said = list(texts), []
    if pre in APPROXIMATED:
        return f"; llama.cpp's pattern is another: {len(left)}"
    for reason, fits in REASONS.items():
        count = sum(fits(t, pre) for t in left)
        left = [t for t in left if not fits(t, pre)]
        said += [f"{reason}: {count}"] if count else []
    return "".join(f"; {s}" for s in said) + (f"; unexplained: {len(left)}" if left else "")


def compare_tokens(strata, path, texts, work):
    name = os.path.basename(path)
    fields = gguf.GGUFReader(path).fields
    field = lambda key: fields[key].contents() if key in fields else "none"
    pre = field("tokenizer.ggml.pre")
    if field("general.architecture") in NOT_COMPARED:
        print(f"---- {name}: {NOT_COMPARED[field('general.architecture')]}", flush=True)
        return True
    texts = [t for t in texts if SPACES_ONLY.get(pre, "\ud800") not in t]
    try:
        ours = strata_tokens(strata, path, texts, work)
    except RuntimeError as refusal:
        print(f"---- {name} ({field('tokenizer.ggml.model')}, pre {pre}): refused: {str(refusal).splitlines()[-1][-160:]}", flush=True)
        return True
    model, truth = Model(path, vocab_only=True), hugging_face(fields, pre)
    theirs = [model.tokenize(t) for t in texts]
    apart = [i for i in range(len(texts)) if ours[i] != theirs[i]]
    wrong = [i for i in range(len(texts)) if truth and ours[i] != truth.encode(texts[i], add_special_tokens=False).ids]
    right = not wrong if truth else not apart
    judge = "" if not truth else f"; {len(texts) - len(wrong)} as Hugging Face's tokenizers" + explain([texts[i] for i in apart], pre)
    right = right and "unexplained" not in judge
    print(f"{'ok  ' if right else 'FAIL'} {name} (pre {pre}): {len(texts) - len(apart)} of {len(texts)} as llama.cpp{judge}", flush=True)
    for i in (wrong or apart)[:3] if not right else []:
        print(f"       {texts[i][:60]!r}: {ours[i][:12]}, llama.cpp {theirs[i][:12]}", flush=True)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("models", "greedy", "tokens"))
    parser.add_argument("strata")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    llama_cpp.llama_log_set(LISTEN, ctypes.c_void_p())
    right = True
    with tempfile.TemporaryDirectory() as work:
        if args.what == "greedy":
            right = compare_greedy(args.strata, args.files[0], args.files[1:], work)
        hybrids = [os.path.join(work, name + ".gguf") for name in ("random_qwen35", "random_qwen35moe")]
        for path, experts in zip(hybrids, (0, 6)):
            write_hybrid(path, experts)
        for path in [*args.files, *hybrids] if args.what == "models" else []:
            right &= compare_model(args.strata, path, work)
        texts = texts_of(args.count, args.seed)
        others = [os.path.join(work, f"{pre} of {os.path.basename(args.files[-1])}") for pre in TRUTH]
        for pre, path in zip(TRUTH, others) if args.what == "tokens" else []:
            renamed(args.files[-1], pre, path)
        for path in [*args.files, *others] if args.what == "tokens" else []:
            right &= compare_tokens(args.strata, path, texts, work)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
