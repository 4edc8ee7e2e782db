#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far the simulated seconds of a step (strata plan train --cluster) are from real ones on this machine: twelve
configurations of one and two ranks, named here before anything runs. The limits are measured before and after each;
where one has moved by more than 5 % the configuration is run again, three times at most, and then is not measured.

usage: simulator_accuracy.py STRATA MODEL_DIR [--only NAME] [--moved SHARE]
MODEL_DIR is a small model whose tokenizer and config the shapes are made from (models/tiny-qwen3). Wants mpirun, two
cores, and a machine that nobody else uses; --moved 10 takes figures from one that others use too.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import tomllib

STEPS = 8  # of which the first is left out
SEQUENCES = 8
TRIES = 3
SHAPES = {
    "wide": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 12,
             "num_key_value_heads": 4, "head_dim": 64, "tokens": 256},
    "deep": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 6,
             "num_key_value_heads": 2, "head_dim": 64, "tokens": 512},
}
# name: shape, method, ranks, options
CONFIGURATIONS = {
    "one rank, LoRA": ("wide", "lora", "data=1", []),
    "one rank, full": ("wide", "full", "data=1", []),
    "one rank, LoRA, recompute": ("deep", "lora", "data=1", ["--recompute", "full"]),
    "data, LoRA": ("wide", "lora", "data=2", []),
    "data, full": ("wide", "full", "data=2", []),
    "data, LoRA, recompute": ("deep", "lora", "data=2", ["--recompute", "full"]),
    "gpipe, LoRA": ("wide", "lora", "pipeline=2", ["--pipeline-schedule", "gpipe", "--microbatches", "4"]),
    "1f1b, LoRA": ("deep", "lora", "pipeline=2", ["--pipeline-schedule", "1f1b", "--microbatches", "4"]),
    "1f1b, full": ("wide", "full", "pipeline=2", ["--pipeline-schedule", "1f1b", "--microbatches", "4"]),
    "zb1p, full": ("deep", "full", "pipeline=2", ["--pipeline-schedule", "zb1p", "--microbatches", "4"]),
    "interleaved, LoRA": ("deep", "lora", "pipeline=2",
                          ["--pipeline-schedule", "interleaved", "--microbatches", "4", "--chunks", "2"]),
    "1f1b, LoRA, recompute": ("wide", "lora", "pipeline=2", ["--pipeline-schedule", "1f1b", "--microbatches", "4",
                                                             "--recompute", "full"]),
}
LIMITS = ("flops", "f32_flops", "read_bytes_per_s")
LINK_LIMITS = ("link_bytes_per_s",)  # that several ranks depend on besides


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def mpirun(ranks):
    return ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", num_ranks(ranks)]


def num_ranks(ranks):
    return int(ranks.partition("=")[2])


class Machine:
    def __init__(self, strata, base, work):
        self.strata, self.base, self.work = strata, pathlib.Path(base), pathlib.Path(work)

    def make_model(self, name):
        """A checkpoint with random weights, and examples of just as many tokens as a sequence has."""
        folder, shape = self.work / name, dict(SHAPES[name])
        if folder.exists():
            return folder
        source = self.work / f"{name}-config"
        source.mkdir()
        for file in self.base.iterdir():
            if file.suffix != ".safetensors" and file.name != "config.json":
                (source / file.name).write_bytes(file.read_bytes())
        config = json.loads((self.base / "config.json").read_text())
        tokens = shape.pop("tokens")
        config |= shape | {"max_position_embeddings": tokens + 1}
        config.pop("layer_types", None)
        (source / "config.json").write_text(json.dumps(config))
        run([self.strata, "init", "--config", source, "--out", folder, "--dtype", "bf16"])
        with open(self.work / f"{name}.jsonl", "w") as lines:
            for i in range(4 * SEQUENCES):
                lines.write(json.dumps({"text": f"{i} " + "The cow says moo. " * tokens}) + "\n")
        return folder

    def measure_limits(self, ranks):
        file = self.work / "cluster.toml"
        if num_ranks(ranks) == 1:
            run([self.strata, "bench", "cluster", "--dtype", "bf16", "--out", file])
        else:
            run([*mpirun(ranks), self.strata, "bench", "cluster", "--dtype", "bf16", "--ranks",
                 f"data={num_ranks(ranks)}", "--out", file])
        return tomllib.loads(file.read_text()), file

    def predict(self, model, method, ranks, options, file):
        tokens = SHAPES[model.name]["tokens"]
        return json.loads(run(
            [self.strata, "plan", "train", model, "--tokens", f"{SEQUENCES}x{tokens}", "--micro-tokens", 2 * tokens,
             "--dtype", "bf16", "--method", method, "--ranks", ranks, *options, "--cluster", file,
             "--json"]))["seconds_per_step"]

    def train(self, model, method, ranks, options):
        out = self.work / "run"
        subprocess.run(["rm", "-rf", out], check=True)
        tokens = SHAPES[model.name]["tokens"]
        run([*mpirun(ranks), self.strata, "train", "--model", model, "--data", self.work / f"{model.name}.jsonl",
             "--out", out, "--max-length", tokens + 1, "--overlong", "cut", "--batch-size", SEQUENCES, "--micro-tokens",
             2 * tokens, "--dtype", "bf16", "--method", method, "--ranks", ranks, *options, "--steps", STEPS,
             "--eval-fraction", 0, "--save-every", 0])
        seconds = []
        for line in (out / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            if "tokens_per_s" in row:
                assert row["tokens"] == SEQUENCES * tokens, row
                seconds.append(row["tokens"] / row["tokens_per_s"])
        assert len(seconds) == STEPS, seconds
        return statistics.median(seconds[1:])


def have_moved(before, after, ranks, share):
    names = LIMITS + (LINK_LIMITS if num_ranks(ranks) > 1 else ())
    return [name for name in names if abs(after[name] - before[name]) > share * before[name]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("strata", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--only", action="append")
    parser.add_argument("--moved", type=float, default=0.05)
    asked = parser.parse_args()
    errors = {}
    with tempfile.TemporaryDirectory() as work:
        machine = Machine(asked.strata.resolve(), asked.model, work)
        for name, (shape, method, ranks, options) in CONFIGURATIONS.items():
            if asked.only and name not in asked.only:
                continue
            model = machine.make_model(shape)
            for attempt in range(TRIES):
                before, file = machine.measure_limits(ranks)
                predicted = machine.predict(model, method, ranks, options, file)
                real = machine.train(model, method, ranks, options)
                after, _ = machine.measure_limits(ranks)
                moved = have_moved(before, after, ranks, asked.moved)
                if not moved:
                    break
            if moved:
                print(f"{name}: not measured: {', '.join(moved)} moved ({real:.3f} s, predicted {predicted:.3f})",
                      flush=True)
                continue
            errors[name] = predicted / real - 1
            print(f"{name}: {real:.3f} s a step, predicted {predicted:.3f}: {100 * errors[name]:+.1f} %", flush=True)
    if not errors:
        sys.exit("nothing was measured")
    sizes = sorted(map(abs, errors.values()))
    print(f"{len(sizes)} measured: median error {100 * statistics.median(sizes):.1f} %, worst {100 * sizes[-1]:.1f} %")


if __name__ == "__main__":
    main()
