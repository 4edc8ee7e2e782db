# SPDX-License-Identifier: Apache-2.0
"""Strata in `make peers`: the program's own works, each in a process of its own, which makes the shape in memory."""
import json
import os
import subprocess


class Strata:
    def __init__(self, program, threads):
        self.program, self.threads = program, threads

    def call(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{self.program} {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout.strip()

    def version(self):
        return self.call("--version")

    def seconds(self):
        """CPU time of all calls that have ended."""
        return sum(os.times()[2:4])

    def run(self, work):
        """What `strata bench --json` says of one timed run, behind one that is not timed."""
        text = self.call("bench", work.name, "--dtype", "bf16", "--threads", self.threads, "--repeat", 1, "--json")
        return json.loads(text)

    def write_model(self, folder):
        """The same shape with random weights, for the peers: a Hugging Face directory, and a GGUF file of it."""
        model, gguf = folder / "model", folder / "model-bf16.gguf"
        if not (model / "model.safetensors").exists():
            self.call("init", "--config", "qwen3-0.6b", "--dtype", "bf16", "--out", model)
        if not gguf.exists():
            self.call("convert", "--model", model, "--to", "gguf", "--type", "bf16", "--out", gguf)
        return model, gguf
