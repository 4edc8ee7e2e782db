#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goldens of adapters of experts as PEFT 0.21 loads them on transformers 5 (the form: peft_form.py).

  tools/golden/make_peft_form.py                   writes tests/golden/peft_form/ and its rows in tests/golden/goldens.json
  tools/golden/make_peft_form.py --check STRATA    trains adapters with the program and loads what it wrote in PEFT
  tools/golden/make_peft_form.py --check STRATA --random COUNT [--seed FIRST]    the same of random models

A case is a committed golden model, an adapter with a pair of tensors for each expert (pairs: older files of `strata train`) and
the same adapter in the new form (peft), whose logprobs PEFT computes. The two mean the same to 1e-12 in float64.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import golden_deepseek_v4
import golden_gpt_oss
import golden_moe
import golden_qwen35
import golden_reference as gr
import golden_run
import make_golden
import peft_form

ROOT = make_golden.ROOT
GOLDEN = os.path.join(ROOT, "tests", "golden")
EACH = golden_moe.EACH
# pairs: an adapter that is committed, or a spec of golden_moe.make_adapter
CASES = {
    "qwen3_moe": dict(model="qwen3_moe", pairs="qwen3_moe/a"),  # mlp_only_layers, a rank divided among experts
    "qwen3_moe_full": dict(model="qwen3_moe", pairs=dict(form="per_expert", r=2, lora_alpha=5, experts=EACH,
                                                         modules=["q_proj", "lm_head", "embed_tokens", *EACH])),
    "qwen3_moe_half": dict(model="qwen3_moe", pairs=dict(form="per_expert", r=3, expert_r=1, lora_alpha=6,
                                                         modules=["up_proj"], experts=["up_proj"])),
    "deepseek_moe": dict(model="deepseek_moe", pairs="deepseek_moe/a"),  # first_k_dense_replace, shared experts
    "qwen3_5_moe": dict(model="qwen3_5_moe", pairs="qwen3_5_moe/a"),
    "deepseek_v4": dict(model="deepseek_v4", pairs="deepseek_v4/a"),
}


def load_in_peft(model_dir, folder, kind):
    """(reference, PEFT model): every tensor of the file has a place and every module is from the file."""
    from peft import PeftModel
    ref = golden_run.make_reference(model_dir, [], kind)
    ref.base.set_experts_implementation("eager")
    with warnings.catch_warnings():
        # "rank_pattern keys did not match any targeted module": PEFT 0.21 looks among modules alone, and applies them.
        warnings.simplefilter("ignore", RuntimeWarning)
        model = PeftModel.from_pretrained(ref.base, folder, autocast_adapter_dtype=False)
    stored = load_file(os.path.join(folder, "adapter_model.safetensors"))
    loaded = {k.replace(".default", ""): v for k, v in model.state_dict().items() if ".lora_" in k}
    stored = {k: v for k, v in stored.items() if ".mtp." not in k}  # which transformers does not have
    assert set(loaded) == set(stored), sorted(set(loaded) ^ set(stored))
    for name, value in stored.items():
        assert torch.equal(loaded[name].double(), value.double()), name
    return ref, model.eval()


@torch.no_grad()
def peft_logprobs(model_dir, folder, request, kind, margins=None):
    ref, model = load_in_peft(model_dir, folder, kind)
    out = []
    for seq in request["sequences"]:
        logits = model(input_ids=torch.tensor([seq["tokens"]]), use_cache=False).logits[0]
        out.append(gr.to_numpy(gr.sequence_loss(request, seq, logits)[0]))
    if margins is not None:
        margins.extend(getattr(ref, "margins", []))
    return np.concatenate(out)


def make_request(model_dir, pairs, seed):
    with open(os.path.join(model_dir, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    vocab = config.get("text_config", config)["vocab_size"]
    maker = make_golden.Maker(np.random.default_rng(seed), vocab, model_dir, [pairs] if pairs else [])
    if not pairs:
        maker.routed_ids = lambda n, adapter: maker.ids(n)
    return {"sequences": [maker.sequence(n, 1, weights=False) for n in (23, 9)], "want": ["logprobs"]}


def make_case(name, spec, seed):
    folder = os.path.join(GOLDEN, "peft_form", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    model_dir = os.path.join(GOLDEN, spec["model"], "model")
    if isinstance(spec["pairs"], str):
        pairs = os.path.join(GOLDEN, spec["pairs"])
    else:
        pairs = os.path.join(folder, "pairs")
        golden_moe.make_adapter(pairs, model_dir, spec["pairs"], torch.Generator().manual_seed(seed))
    new = os.path.join(folder, "peft")
    peft_form.to_peft(pairs, new)
    request = make_request(model_dir, pairs, seed)
    truth = peft_logprobs(model_dir, new, request, "f64")
    hooks = golden_run.run_request(model_dir, [pairs], request, "f64")["logprobs"]
    plain = {"sequences": [dict(s, adapter=0) for s in request["sequences"]], "want": ["logprobs"]}
    base = golden_run.run_request(model_dir, [], plain, "f64")["logprobs"]
    assert gr.relative_l2(truth, hooks) < 1e-12, f"{name}: the two forms differ"
    assert gr.relative_l2(truth, base) > 1e-3, f"{name}: the adapter does nothing"
    noise = gr.relative_l2(peft_logprobs(model_dir, new, request, "f32"), truth)
    gr.save_json(os.path.join(folder, "main.json"), request)
    save_file({"logprobs": torch.tensor(truth, dtype=torch.float32)}, os.path.join(folder, "main.safetensors"))
    make_golden.write_pretty(os.path.join(folder, "main.noise.json"), {"logprobs": {"f32": float(f"{noise:.3g}")}})
    print(f"{name}: PEFT and hooks {gr.relative_l2(truth, hooks):.1e}, f32 noise {noise:.1e}", flush=True)
    stem = f"peft_form/{name}"
    return {"name": stem, "model": f"{spec['model']}/model", "adapters": [f"{stem}/peft"], "request": f"{stem}/main.json",
            "expected": f"{stem}/main.safetensors", "noise": f"{stem}/main.noise.json"}


def make():
    index = os.path.join(GOLDEN, "goldens.json")
    with open(index, encoding="utf-8") as f:
        rows = [r for r in json.load(f) if not r["name"].startswith("peft_form/")]
    rows += [make_case(name, spec, 11 + i) for i, (name, spec) in enumerate(CASES.items())]
    make_golden.write_pretty(index, sorted(rows, key=lambda r: r["name"]))


# What `strata train` is run with in check().
TRAINED = {
    "divided": [], "full": ["--expert-rank", "full"], "gate alone": ["--targets", "gate_proj"],
    "experts and head": ["--targets", "gate_proj,up_proj,down_proj,lm_head,embed_tokens", "--rank", "12"],
}


LETTERS = "abcdefghijklmnopqrstuvwxyz.?"


def copy_with_tokenizer(source, folder):
    """A golden model with a tokenizer of single letters, since golden models have none."""
    shutil.copytree(source, folder)
    tokens = ["\u0120", *LETTERS]  # a space, as byte-level BPE writes it
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    content = {"version": "1.0", "added_tokens": [{"id": len(tokens), "content": "<end>", "special": True, "single_word": False,
                                                   "lstrip": False, "rstrip": False, "normalized": False}],
               "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
               "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                         "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                         "vocab": {t: i for i, t in enumerate(tokens)}, "merges": []}}
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(content, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}, f)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def write_data(path):
    with open(path, "w", encoding="utf-8") as f:
        for i in range(12):
            f.write(json.dumps({"prompt": f"what is {LETTERS[i]}? ", "completion": LETTERS[i:i + 9] + "."}) + "\n")


def routed_request(model_dir, folder):
    """(request, what PEFT computes in float64) where no choice of experts is close: float32 then chooses as float64 does."""
    for seed in range(5, 40):
        request, margins = make_request(model_dir, None, seed), []
        truth = peft_logprobs(model_dir, folder, request, "f64", margins)
        if min(margins, default=1.0) > make_golden.Maker.ROUTING_GAP:
            return request, truth
    raise AssertionError(f"{model_dir}: every choice of experts is close")


def check_training(strata, source, options, work):
    """Trains an adapter of a model and compares what the program and PEFT compute with it: the relative error."""
    model, data, out = (os.path.join(work, part) for part in ("model", "data.jsonl", "out"))
    copy_with_tokenizer(source, model)
    write_data(data)
    run(strata, "train", "--model", model, "--data", data, "--out", out, "--dtype", "f32", "--epochs", "8",
        "--batch-tokens", "128", "--lr", "0.02", *options)
    request, truth = routed_request(model, out)
    files = [os.path.join(work, part) for part in ("request.json", "probe.safetensors")]
    gr.save_json(files[0], request)
    run(strata, "probe", "--model", model, "--adapter", out, "--request", files[0], "--out", files[1], "--dtype", "f32")
    got = load_file(files[1])["logprobs"].double().numpy()
    noise = gr.relative_l2(peft_logprobs(model, out, request, "f32"), truth)
    error, limit = gr.relative_l2(got, truth), max(10 * noise, 2e-6)
    base = dict(request, sequences=[dict(s, adapter=0) for s in request["sequences"]])
    moved = gr.relative_l2(golden_run.run_request(model, [], base, "f64")["logprobs"], truth)
    assert error < limit and moved > 1e-3, f"off by {error:.1e} (limit {limit:.1e}), moved by {moved:.1e}"
    return error


def check(strata):
    cases = [(n, *c) for n in ("qwen3_moe", "deepseek_moe", "qwen3_5_moe", "deepseek_v4", "gpt_oss") for c in TRAINED.items()]
    cases.append(("deepseek_v4_mtp", "multi-token prediction", ["--mtp-weight", "0.3"]))
    for name, what, options in cases:
        with tempfile.TemporaryDirectory() as work:
            error = check_training(strata, os.path.join(GOLDEN, name, "model"), options, work)
            print(f"{name}, {what}: PEFT and strata {error:.1e} apart", flush=True)


def random_options(rng):
    pick = lambda *values: values[int(rng.integers(len(values)))]
    some = [str(n) for n in rng.permutation(EACH)[: int(rng.integers(1, 4))]]
    return ["--rank", str(int(rng.integers(1, 14))), "--alpha", str(pick(1, 7, 16.5, 32)), "--expert-rank", pick("divided", "full"),
            "--targets", pick("all-linear", "all-linear", ",".join(some), ",".join([*some, "lm_head"])),
            "--seed", str(int(rng.integers(1000)))]


def check_random(strata, count, first):
    """Models with experts that nobody chose, each with an adapter of random targets, ranks and alpha."""
    families = {"qwen3_moe": golden_moe, "deepseek_v3": golden_moe, "glm4_moe_lite": golden_moe, "qwen3_5_moe": golden_qwen35,
                "deepseek_v4": golden_deepseek_v4, "gpt_oss": golden_gpt_oss}
    faults = 0
    for seed in range(first, first + count):
        family = list(families)[seed % len(families)]
        spec = dict(families[family].random_case(family, seed), form="text" if family == "qwen3_5_moe" else None)
        spec = {k: v for k, v in spec.items() if v is not None}
        options = random_options(np.random.default_rng([seed, 77]))
        with tempfile.TemporaryDirectory() as work:
            source = os.path.join(work, "source")
            make_golden.make_model(source, spec, torch.Generator().manual_seed(seed))
            try:
                error = check_training(strata, source, options, work)
                print(f"seed {seed}, {family} {' '.join(options)}: {error:.1e}", flush=True)
            except AssertionError as fault:
                faults += 1
                print(f"seed {seed}, {family} {' '.join(options)}: FAULT {fault}", flush=True)
    print(f"{count} random adapters from seed {first}, {faults} faults")
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", metavar="STRATA", help="the program")
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="so many random models instead")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if args.random:
        sys.exit(1 if check_random(args.check, args.random, args.seed) else 0)
    check(args.check) if args.check else make()
