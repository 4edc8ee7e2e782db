#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random tiny models of every family, computed by Strata and by transformers and PEFT: whose answers differ?

usage: python tools/golden/random_models.py --strata build/release/strata [--count 200] [--seed 1] [--family qwen3] [--jobs 2]
       python tools/golden/random_models.py --write tests/golden/random_models.json --count 40 --seed 1
                                                            references that tests/golden/random_models_test.cc reads
       python tools/golden/random_models.py --strata ... --edges             the named edges of random_edges.py instead
       python tools/golden/random_models.py --write tests/golden/edge_models.json --edges

A seed draws all of a model: family, sizes, scaling, windows, heads, spelling of config.json, names and shards of its
files, adapters and tokens. Logits, logprobs and the adapters' gradients may be as far from float64 as tools/golden/
compare_probe.py says; a refusal is a failure too. Adapters of models with experts are applied by golden_moe.py, which
reads every form, and by PEFT (peft_reference.py): the two must agree. Of a failure the smallest form that still fails is looked for and
printed, and its files are kept. Needs tools/requirements/golden.txt.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
warnings.filterwarnings("ignore")

import numpy as np
import torch
from safetensors import safe_open

import compare_probe
import generated_model
import golden_deepseek_v4
import golden_gemma3
import golden_gpt_oss
import golden_llama4
import golden_moe
import golden_qwen35
import golden_readers
import golden_reference as gr
import golden_run
import golden_window
import make_golden
import peft_reference
import random_edges

DRAWS = {"llama": make_golden.random_case, "qwen3": make_golden.random_case, "qwen2": golden_window.random_case,
         "mistral": golden_window.random_case, "gemma3": golden_gemma3.random_case,
         **dict.fromkeys(golden_qwen35.FAMILIES, golden_qwen35.random_case), "deepseek_v4": golden_deepseek_v4.random_case,
         "qwen3_moe": golden_moe.random_case, "deepseek_v3": golden_moe.random_case, "glm4_moe_lite": golden_moe.random_case,
         **dict.fromkeys(golden_readers.FAMILIES, golden_readers.random_case), "gpt_oss": golden_gpt_oss.random_case,
         "llama4": golden_llama4.random_case}
# Of float64, between PEFT and what golden_moe.py computes.
PEFT_GAP = 1e-11
# No choice of experts closer than this: float32 then chooses as float64 does.
ROUTING_GAP = 3e-5


class NotAModel(Exception):
    """transformers itself cannot run what was drawn."""


@contextlib.contextmanager
def not_a_model():
    try:
        yield
    except (ValueError, TypeError, KeyError, RuntimeError, AssertionError) as error:
        raise NotAModel(f"{type(error).__name__}: {str(error)[:200]}") from error


def tensor_rows(folder, config):
    """{file: [[tensor, dtype, shape, mean, spread]]} of a folder's files, their sizes as they were drawn."""
    files = {}
    experts = config.get("n_routed_experts") or config.get("num_local_experts")
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with safe_open(os.path.join(folder, name), "pt") as f:
            for key in f.keys():
                value = f.get_tensor(key)
                dtype = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}.get(value.dtype, "I64")
                mean, spread = experts, 0
                if dtype != "I64":
                    value = value.double()
                    mean = round(float(value.mean()) * generated_model.UNIT) if value.numel() and "norm" in key + "bias" else 0
                    deviation = float((value - mean / generated_model.UNIT).pow(2).mean()) ** 0.5 if value.numel() else 0.0
                    spread = max(1, round(3 ** 0.5 * deviation * generated_model.UNIT))
                files.setdefault(name, []).append([key, dtype, list(value.shape), mean, spread])
    return files


def draw_case(seed, family, leave_out=()):
    """A case of generated_model.py with random sequences; the names of its edges are under "edges"."""
    spec = DRAWS[family](family, seed)
    spec.update(requests=[], sharpness=1)
    if "adapters" in leave_out:
        spec["adapters"] = []
    if "dtype" in leave_out:
        spec["dtype"] = "F32"
    for adapter in spec["adapters"]:
        adapter.pop("copies", None)  # of an embedding whose numbers are drawn again
    edges = [e for e in random_edges.draw_edges(seed, spec) if e.name not in leave_out]
    for edge in edges:
        edge.change_spec(spec)
    gen = torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder, not_a_model():
        model = os.path.join(folder, "model")
        make_golden.make_model(model, spec, gen)
        case = {"seed": seed, "family": family}
        with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
            case["config"] = json.load(f)
        case["files"] = tensor_rows(model, case["config"])
        case["adapters"] = []
        for index, adapter in enumerate(spec["adapters"]):
            path = os.path.join(folder, str(index))
            make_golden.make_adapter(path, model, adapter, gen)
            with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as f:
                config = json.load(f)
            rows = tensor_rows(path, {}).get("adapter_model.safetensors")
            if rows:  # some fit no module of the model
                case["adapters"].append({"config": config, "tensors": rows})
    for edge in edges:
        edge.change_case(case)
    case["edges"] = [edge.name for edge in edges]
    rng = np.random.default_rng([seed, 99])
    lengths = [spec.get("longest", 33)] + [int(rng.integers(2, 40)) for _ in case["adapters"]]
    if "sequences" in leave_out:
        lengths = lengths[:1]
    if "length" in leave_out:
        lengths = [9] * len(lengths)
    vocab = spec["config"]["vocab_size"]
    case["sequences"] = [draw_sequence(rng, n, vocab, k) for k, n in enumerate(lengths)]
    case["vocab"] = vocab
    return case


def draw_if_model(*args):
    try:
        return draw_case(*args)
    except NotAModel:
        return None


def draw_sequence(rng, length, vocab, adapter):
    ids = [int(t) for t in rng.integers(0, vocab, length + 1)]
    return {"tokens": ids[:-1], "targets": ids[1:], "adapter": adapter}


def request_of(case):
    want = ["logits", "logprobs", "loss"] + (["adapter_grads"] if case["adapters"] else [])
    return {"sequences": case["sequences"], "want": want}


def joined(values):
    """The gradients of an adapter as one vector: those of one small tensor are one draw of rounding's luck."""
    out, parts = {}, {}
    for name, value in values.items():
        found = re.match(r"(adapter_grad\.\d+)\.", name)
        if found:
            parts.setdefault(found.group(1), []).append((name, np.asarray(value, np.float64).ravel()))
        else:
            out[name] = np.asarray(value, np.float64)
    out.update({k: np.concatenate([v for _, v in sorted(group)]) for k, group in parts.items()})
    return out


def check_by_peft(case, model, adapters, truth):
    """That PEFT gives the adapters of a model with experts the logits and the gradients of `truth`."""
    is_checked = golden_moe.has_experts(model) and case["family"] not in golden_llama4.FAMILIES  # whose reference is PEFT
    for k, folder in enumerate(adapters, 1) if is_checked else []:
        rows = np.concatenate([np.full(len(s["tokens"]), s["adapter"] == k) for s in case["sequences"]])
        logits, grads = peft_reference.run(model, folder, [s for s in case["sequences"] if s["adapter"] == k])
        got = {"logits": logits, **{f"adapter_grad.{k}.{name}": value for name, value in grads.items()}}
        want = {name: truth[name][rows] if name == "logits" else truth[name] for name in got}
        for name, value in joined(got).items():
            gap = gr.relative_l2(value, joined(want)[name])
            assert gap < PEFT_GAP, f"{name} of adapter {k}: PEFT and golden_moe.py are {gap:.1e} apart"


def references(case, model, adapters):
    """(truth, {name: noise of float32}); draws tokens again where a choice of experts is close."""
    rng = np.random.default_rng([case["seed"], 100])
    for _ in range(20):
        routing = [1.0]
        with not_a_model():
            truth = golden_run.run_request(model, adapters, request_of(case), "f64", routing=routing)
        if min(routing) > ROUTING_GAP:
            break
        case["sequences"] = [draw_sequence(rng, min(12, len(s["tokens"])), case["vocab"], s["adapter"]) for s in case["sequences"]]
    else:
        raise NotAModel("every choice of experts is close")
    check_by_peft(case, model, adapters, truth)
    truth = joined(truth)
    single = joined(golden_run.run_request(model, adapters, request_of(case), "f32"))
    return truth, {name: gr.relative_l2(single[name], value) if value.any() else 0.0 for name, value in truth.items()}


def run_strata(strata, folder, model, adapters, case):
    request, out = os.path.join(folder, "request.json"), os.path.join(folder, "out.safetensors")
    generated_model.write_json(request, request_of(case))
    command = [strata, "probe", "--model", model, "--request", request, "--out", out, "--dtype", "f32", "--threads", "1"]
    for adapter in adapters:
        command += ["--adapter", adapter]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return (joined(compare_probe.read_safetensors(out)), "") if done.returncode == 0 else (None, done.stderr.strip()[-600:])


def check_case(case, strata, keep=None):
    """The fault of one case in a sentence, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        model, adapters = generated_model.write_case(case, folder)
        try:
            truth, noise = references(case, model, adapters)
        except AssertionError as gap:
            return str(gap)
        got, message = run_strata(strata, folder, model, adapters, case)
        fault = f"refused: {message}" if got is None else ""
        for name in sorted(truth) if got else []:
            limit = compare_probe.limit_of(name, {"f32": noise[name]}, "f32")
            error = gr.relative_l2(got[name], truth[name]) if name in got and got[name].size == truth[name].size else float("nan")
            if not error <= limit:
                fault = fault or f"{name}: {error:.1e} of {limit:.1e}"
        if fault and keep:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(folder, keep)
            generated_model.write_json(os.path.join(keep, "case.json"), case)
        return fault


def reduce_case(seed, family, strata, case):
    """What may be left out while it still fails."""
    left_out = []
    for part in ["adapters", "sequences", "length", "dtype", *case["edges"]]:
        try:
            smaller = draw_case(seed, family, [*left_out, part])
            if check_case(smaller, strata):
                left_out.append(part)
        except NotAModel:
            pass
    return left_out


def all_cases(args):
    if args.edges:
        for name, case in random_edges.named_cases(draw_if_model):
            yield name, case["family"], case
        return
    names = [args.family] if args.family else sorted(DRAWS)
    for seed in range(args.seed, args.seed + args.count):
        if seed % args.jobs == args.job:
            yield f"{names[seed % len(names)]} {seed}", names[seed % len(names)], None


def check_all(args):
    counts, faults = {"same": 0, "not a model": 0}, []
    start = time.time()
    for name, family, case in all_cases(args):
        seed = case["seed"] if case else int(name.split()[-1])
        try:
            case = case or draw_case(seed, family)
            keep = os.path.join(args.keep, name.replace(" ", "_"))
            fault = check_case(case, args.strata, keep)
        except NotAModel as error:
            counts["not a model"] += 1
            print(f"skip {name}: {error}", flush=True)
            continue
        counts["same"] += not fault
        print(f"{'FAIL' if fault else 'ok  '} {name} {' '.join(case['edges'])} {fault}", flush=True)
        if fault:
            if not args.edges:
                print(f"     still fails without: {' '.join(reduce_case(seed, family, args.strata, case)) or 'nothing'}; files: {keep}", flush=True)
            faults.append(name)
    what = "edges" if args.edges else f"seeds {args.seed} to {args.seed + args.count - 1}"
    print(f"random_models: {what}: {counts['same']} models the same, {counts['not a model']} that transformers does not run, {len(faults)} differ"
          f"{': ' + ', '.join(faults) if faults else ''}; {time.time() - start:.0f} s", flush=True)
    return len(faults)


def write_references(args):
    """Of each case what cannot be made again: the logprobs of its targets."""
    rows = []
    for name, family, case in all_cases(args):
        try:
            case = case or draw_case(int(name.split()[-1]), family)
            for sequence in case["sequences"]:  # short ones, to keep the file small
                for key in ("tokens", "targets"):
                    sequence[key] = sequence[key][:40]
            with tempfile.TemporaryDirectory() as folder:
                truth, noise = references(case, *generated_model.write_case(case, folder))
        except NotAModel as error:
            print(f"skip {name}: {error}", flush=True)
            continue
        rows.append({"name": re.sub(r"\W", "_", name), **case, "logprobs": [float(f"{v:.9g}") for v in truth["logprobs"]],
                     "noise": float(f"{noise['logprobs']:.3g}")})
        print(f"{name} {' '.join(case['edges'])}: noise {noise['logprobs']:.1e}", flush=True)
    with open(args.write, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strata", help="the program")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=sorted(DRAWS))
    parser.add_argument("--edges", action="store_true", help="the named edges")
    parser.add_argument("--jobs", type=int, default=1, help="processes; each takes its share of the seeds")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keep", default=os.path.join(tempfile.gettempdir(), "strata_random_models"), help="folder for failures")
    parser.add_argument("--write", help="write references instead")
    args = parser.parse_args()
    if args.job is None and args.jobs > 1 and not args.write:
        own = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
        runs = [subprocess.Popen([*own, "--job", str(job)]) for job in range(args.jobs)]
        sys.exit(max(run.wait() for run in runs))
    args.job = args.job or 0
    args.jobs = args.jobs if not args.write else 1
    torch.set_num_threads(1)
    from transformers.utils import logging
    logging.set_verbosity_error()
    if args.write:
        return write_references(args)
    if not args.strata:
        parser.error("--strata is required")
    sys.exit(min(check_all(args), 1))


if __name__ == "__main__":
    main()
