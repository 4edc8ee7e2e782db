#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare what `strata probe` writes with goldens of tools/golden/make_golden.py.

usage: python tools/golden/compare_probe.py --strata build/release/strata [--goldens tests/golden] [--only TEXT]
                                     [--dtype f32,bf16] [--equalities] [--verbose]
       python tools/golden/compare_probe.py --got OUT.safetensors --expected E.safetensors --noise N.json [--dtype f32]

A tensor passes when its relative L2 error is at most max(10 x the noise of transformers in f32, 2e-6);
with --dtype bf16 at most twice the noise of transformers and PEFT in bf16, the layers of a model together (values after training steps and
samples are compared in f32 only). Where the expected tensor is all zero ours must be exactly zero. Names
and shapes must agree completely; sampled ids exactly. --equalities also reruns each request in the ways
that must not change a bit. Exit code 0 when everything passes. Needs numpy alone.
"""
import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np

EXACT = re.compile(r"sample\.\d+\.(tokens|stop|topk_ids)$")
F32_ONLY = re.compile(r"(train\.|adapter_final\.|param_final\.|sample\.)")


def read_safetensors(path):
    """{name: array} of a file whose tensors are all F32."""
    with open(path, "rb") as f:
        data = f.read()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    out = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        if row["dtype"] != "F32":
            raise SystemExit(f"{path}: tensor '{name}' is {row['dtype']}, wanted F32")
        begin, end = row["data_offsets"]
        raw = np.frombuffer(data[8 + size + begin:8 + size + end], "<f4")
        out[name] = raw.reshape(row["shape"])
    return out


def relative_l2(got, want):
    got, want = np.asarray(got, np.float64).ravel(), np.asarray(want, np.float64).ravel()
    scale, error = np.linalg.norm(want), np.linalg.norm(got - want)
    if scale == 0:
        return 0.0 if error == 0 else float("inf")
    return float(error / scale)


def limit_of(name, noise, dtype):
    if EXACT.match(name):
        return 0.0
    if dtype == "f32":
        return max(10 * noise.get("f32", 0.0), 2e-6)
    # Adapters in bf16 or, PEFT's default, in f32: the better of the two is the measure.
    # None: rounding changed transformers' choice of experts, so that its error says nothing.
    return 2 * min((noise[k] for k in ("bf16", "bf16_peft") if k in noise), default=float("inf"))


def join_experts(tensors):
    """Tensors of single experts stacked to one for each layer, as they are compared in bf16."""
    out, groups = {}, {}
    for name, value in tensors.items():
        joined = re.sub(r"\.experts\.\d+\.", ".experts.*.", name)
        if joined == name:
            out[name] = value
        else:
            groups.setdefault(joined, []).append((name, value))
    out.update({k: np.stack([v for _, v in sorted(g)]) for k, g in groups.items()})
    return out


def pool_layers(rows, want):
    """In bf16: rows that differ by the layer alone as one, by the sums of their squared errors. The noise of
    one small tensor is one draw, and the ratio of two draws of one distribution passes 2 now and then."""
    out, pools = [], {}
    for row in rows:
        name, error, limit, fault = row
        size = float(np.sum(np.square(want[name].astype(np.float64)))) if name in want else 0.0
        if fault not in ("", "too far") or size == 0 or limit == 0 or not np.isfinite(limit):
            out.append(row)
            continue
        pool = pools.setdefault(re.sub(r"\.layers\.\d+\.", ".layers.*.", name), np.zeros(3))
        pool += [error * error * size, limit * limit * size, size]
    for name, (ours, allowed, size) in sorted(pools.items()):
        error, limit = float(np.sqrt(ours / size)), float(np.sqrt(allowed / size))
        out.append((name, error, limit, "" if error <= limit else "too far"))
    return out


def compare(got, want, noise, dtype):
    """Rows (name, error, limit, fault or '') for every name of either side."""
    rows = []
    if dtype != "f32":
        got, want = join_experts(got), join_experts(want)
    for name in sorted(set(got) | set(want)):
        if name not in got or name not in want:
            rows.append((name, float("inf"), 0.0, "missing" if name not in got else "not expected"))
        elif name.endswith("tokens") and got[name].shape != want[name].shape and dtype != "f32":
            continue
        elif dtype != "f32" and F32_ONLY.match(name):
            continue
        elif got[name].shape != want[name].shape:
            rows.append((name, float("inf"), 0.0, f"shape {got[name].shape}, wanted {want[name].shape}"))
        else:
            error, limit = relative_l2(got[name], want[name]), limit_of(name, noise.get(name, {}), dtype)
            # Written so that NaN fails.
            rows.append((name, error, limit, "" if error <= limit else "too far"))
    return rows if dtype == "f32" else pool_layers(rows, want)


def report(title, rows, verbose):
    """Prints one case; returns the number of faults."""
    faults = [r for r in rows if r[3]]
    used = max((r[1] / r[2] for r in rows if r[2] > 0 and not r[3]), default=0.0)
    print(f"{'FAIL' if faults else 'ok  '} {title}: {len(rows)} tensors, {len(faults)} faults, "
          f"largest error / limit of the passing {used:.2f}", flush=True)
    shown = rows if verbose else faults[:12]
    for name, error, limit, fault in shown:
        print(f"       {error:9.2e} of {limit:9.2e}  {name}  {fault}")
    if len(faults) > len(shown):
        print(f"       ... and {len(faults) - len(shown)} more")
    return len(faults)


def probe(strata, model, adapters, request, out, *options):
    command = [strata, "probe", "--model", model, "--request", request, "--out", out, *options]
    for adapter in adapters:
        command += ["--adapter", adapter]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"FAIL exit {done.returncode}: {' '.join(command)}\n     {done.stderr.strip()[-1500:]}")
        return None
    return read_safetensors(out)


class Equalities:
    """Reruns of one request that must give the same bits."""

    def __init__(self, strata, row, root, folder, dtype):
        self.strata, self.dtype, self.folder = strata, dtype, folder
        self.model = os.path.join(root, row["model"])
        self.adapters = [os.path.join(root, a) for a in row["adapters"]]
        self.path = os.path.join(root, row["request"])
        with open(self.path, encoding="utf-8") as f:
            self.request = json.load(f)
        self.faults = []

    def run(self, request, adapters, *options):
        path = os.path.join(self.folder, "request.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(request, f)
        out = os.path.join(self.folder, "equal.safetensors")
        return probe(self.strata, self.model, adapters, path, out, "--dtype", self.dtype, *options)

    def same(self, what, got, want, names=None):
        if got is None:
            self.faults.append(f"{what}: no output")
            return
        for name in sorted(names if names is not None else set(got) | set(want)):
            if name not in got or name not in want:
                self.faults.append(f"{what}: {name} is missing")
            elif got[name].tobytes() != want[name].tobytes():
                worst = relative_l2(got[name], want[name])
                self.faults.append(f"{what}: {name} differs, relative L2 {worst:.1e}")

    def check(self):
        request, adapters = self.request, self.adapters
        whole = self.run(request, adapters)
        if whole is None:
            return ["no output"]
        self.same("rerun", self.run(request, adapters), whole)
        self.same("--recompute full", self.run(request, adapters, "--recompute", "full"), whole)
        for threads in ("1", "2", "3"):
            self.same(f"--threads {threads}", self.run(request, adapters, "--threads", threads), whole)
        plain = {k: v for k, v in request.items() if k not in ("train", "sample")}
        self.check_alone(plain, whole)
        self.check_base(plain, whole)
        self.check_adapters(plain, whole)
        self.check_samples(whole)
        return self.faults

    def rows(self, out, begin, end):
        names = [n for n in ("hidden_states", "logits", "logprobs", "loss") if n in out]
        return {n: out[n][:, begin:end] if n == "hidden_states" else out[n][begin:end] for n in names}

    def check_alone(self, plain, whole):
        begin = 0
        for i, seq in enumerate(plain["sequences"]):
            end = begin + len(seq["tokens"])
            got = self.run({**plain, "sequences": [seq]}, self.adapters)
            if got is not None:
                self.same(f"sequence {i} alone", self.rows(got, 0, end - begin), self.rows(whole, begin, end))
            begin = end

    def check_base(self, plain, whole):
        """Base rows need no adapter beside them, in the request or on the command line."""
        want, seqs, begin = [], [], 0
        for seq in plain["sequences"]:
            end = begin + len(seq["tokens"])
            if seq.get("adapter", 0) == 0:
                want.append(self.rows(whole, begin, end))
                seqs.append(seq)
            begin = end
        if seqs and self.adapters:
            names = [n for n in plain.get("want", []) if n != "adapter_grads"]
            got = self.run({**plain, "sequences": seqs, "want": names}, [])
            joined = {n: np.concatenate([w[n] for w in want], 1 if n == "hidden_states" else 0)
                      for n in want[0]}
            self.same("base rows without adapters", got, joined, joined.keys())

    def check_adapters(self, plain, whole):
        if "adapter_grads" not in plain.get("want", []):
            return
        for k in range(1, len(self.adapters) + 1):
            seqs = [s for s in plain["sequences"] if s.get("adapter", 0) == k]
            if seqs:
                got = self.run({**plain, "sequences": seqs}, self.adapters)
                names = [n for n in whole if n.startswith(f"adapter_grad.{k}.")]
                self.same(f"gradients of adapter {k} without the others", got, whole, names)

    def check_samples(self, whole):
        """Each entry alone; and its logprobs again by the trainer's forward pass."""
        for i, entry in enumerate(self.request.get("sample", [])):
            name = f"sample.{i}."
            got = self.run({"sequences": self.request["sequences"], "want": [], "sample": [entry]}, self.adapters)
            if got is None:
                continue
            self.same(f"sample {i} alone", {name + k[9:]: v for k, v in got.items() if k.startswith("sample.0.")},
                      {k: v for k, v in whole.items() if k.startswith(name)})
            tokens = entry["tokens"] + [int(t) for t in whole[name + "tokens"]]
            again = self.run({"sequences": [{"tokens": tokens, "targets": tokens[1:] + [0],
                                             "adapter": entry.get("adapter", 0)}], "want": ["logprobs"]}, self.adapters)
            if again is None:
                continue
            p = len(entry["tokens"])
            self.same(f"sample {i} as the trainer sees it", {"logprobs": again["logprobs"][p - 1:-1]},
                      {"logprobs": whole[name + "logprobs"]})
            if name + "prompt_logprobs" in whole:
                self.same(f"prompt {i} as the trainer sees it", {"logprobs": again["logprobs"][:p - 1]},
                          {"logprobs": whole[name + "prompt_logprobs"][1:]})


def run_goldens(args):
    with open(os.path.join(args.goldens, "goldens.json"), encoding="utf-8") as f:
        rows = [r for r in json.load(f) if not args.only or re.search(args.only, r["name"])]
    if not rows:
        raise SystemExit(f"compare_probe: no golden matches '{args.only}'")
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            at = lambda key: os.path.join(args.goldens, row[key])
            adapters = [os.path.join(args.goldens, a) for a in row["adapters"]]
            with open(at("noise"), encoding="utf-8") as f:
                noise = json.load(f)
            for dtype in args.dtype.split(","):
                got = probe(args.strata, at("model"), adapters, at("request"),
                            os.path.join(folder, "out.safetensors"), "--dtype", dtype, *args.options)
                title = f"{row['name']} {dtype}"
                if got is None:
                    faults += 1
                    continue
                table = compare(got, read_safetensors(at("expected")), noise, dtype)
                faults += report(title, table, args.verbose)
                if args.equalities:
                    unequal = Equalities(args.strata, row, args.goldens, folder, dtype).check()
                    faults += len(unequal)
                    print(f"{'FAIL' if unequal else 'ok  '} {title}: equalities", flush=True)
                    for line in unequal[:20]:
                        print(f"       {line}")
    print(f"{len(rows)} goldens, {faults} faults")
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strata")
    parser.add_argument("--goldens", default=os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "golden"))
    parser.add_argument("--only", help="regular expression on CASE/NAME")
    parser.add_argument("--dtype", default="f32", help="f32, bf16 or f32,bf16")
    parser.add_argument("--equalities", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--got")
    parser.add_argument("--expected")
    parser.add_argument("--noise")
    parser.add_argument("options", nargs="*", help="after --: further options for strata probe")
    args = parser.parse_args()
    if args.strata:
        sys.exit(run_goldens(args))
    if not args.got or not args.expected:
        parser.error("give --strata, or --got and --expected")
    noise = {}
    if args.noise:
        with open(args.noise, encoding="utf-8") as f:
            noise = json.load(f)
    rows = compare(read_safetensors(args.got), read_safetensors(args.expected), noise, args.dtype)
    sys.exit(1 if report(args.got, rows, args.verbose) else 0)


if __name__ == "__main__":
    main()
