#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/ops/sampling_options.json: what transformers' logits processors and vLLM's formula make of fixed logits.

usage: python tools/golden/make_sampling_options.py       needs tools/requirements/golden.txt

Each case has logits, the tokens before the choice, the options, the logits as bias and penalties leave them, and the
probabilities of the tokens that may be drawn.
Bias, repetition, temperature, top-k, top-p and min-p are transformers' own classes in the order of its generate().
Presence and frequency penalties, which transformers lacks, are the two lines of vLLM's apply_penalties
(vllm/model_executor/layers/utils.py at commit 00358600ed52), between repetition and temperature as there.
"""
import json
import pathlib

import torch
import transformers
from transformers.generation.logits_process import (
    MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
    TopPLogitsWarper)

OUT = pathlib.Path(__file__).parent.parent.parent / "tests/ops/sampling_options.json"
VOCAB, CASES = 48, 60


def vllm_counts(scores, answer, frequency, presence):
    counts = torch.zeros((1, VOCAB + 1), dtype=torch.long)
    tokens = torch.tensor([answer], dtype=torch.long)
    counts.scatter_add_(1, tokens, torch.ones_like(tokens))
    counts = counts[:, :VOCAB]
    scores -= torch.tensor([[frequency]]) * counts
    scores -= torch.tensor([[presence]]) * (counts > 0)
    return scores


def probabilities(case):
    scores = torch.tensor([case["logits"]], dtype=torch.float32)
    ids = torch.tensor([case["prompt"] + case["answer"]], dtype=torch.long)
    if case["logit_bias"]:
        scores = SequenceBiasLogitsProcessor({(token,): add for token, add in case["logit_bias"]})(ids, scores)
    if case["repetition_penalty"] != 1:
        scores = RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])(ids, scores)
    scores = vllm_counts(scores.clone(), case["answer"], case["frequency_penalty"], case["presence_penalty"])
    changed = scores.clone()
    scores = TemperatureLogitsWarper(case["temperature"])(ids, scores)
    if case["top_k"]:
        scores = TopKLogitsWarper(case["top_k"])(ids, scores)
    if case["top_p"] < 1:
        scores = TopPLogitsWarper(case["top_p"])(ids, scores)
    if case["min_p"]:
        scores = MinPLogitsWarper(case["min_p"])(ids, scores)
    return changed[0].tolist(), torch.softmax(scores.double(), dim=-1)[0].tolist()


def make(index, rng):
    def pick(values):
        return values[int(torch.randint(len(values), (1,), generator=rng))]

    def tokens(count):  # of few different ones, so that counts go up
        return torch.randint(12, (count,), generator=rng).tolist()

    case = {
        "logits": (torch.round(torch.randn(VOCAB, generator=rng) * 8192) / 4096).tolist(),
        "prompt": tokens(1 + index % 9),
        "answer": tokens(pick([0, 1, 5, 25])),
        "logit_bias": [[int(t), pick([-100.0, -1.5, 0.5, 4.0])] for t in torch.randperm(VOCAB, generator=rng)[:pick([0, 0, 1, 4])]],
        "repetition_penalty": pick([1.0, 1.1, 1.7, 0.6]),
        "frequency_penalty": pick([0.0, 0.3, 2.0, -0.5]),
        "presence_penalty": pick([0.0, 0.7, 2.0, -1.25]),
        "temperature": pick([1.0, 0.7, 2.5]),
        "top_k": pick([0, 0, 5, 20]),
        "top_p": pick([1.0, 1.0, 0.6, 0.95]),
        "min_p": pick([0.0, 0.0, 0.05, 0.3]),
    }
    changed, probability = probabilities(case)
    case["changed"] = [float(f"{x:.9g}") for x in changed]
    case["probabilities"] = {i: float(f"{p:.8g}") for i, p in enumerate(probability) if p > 0}
    return case


def main():
    rng = torch.Generator().manual_seed(20260101)
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    lines = [json.dumps(make(i, rng)) for i in range(CASES)]
    OUT.write_text('{"versions": %s, "cases": [\n%s\n]}\n' % (json.dumps(versions), ",\n".join(lines)))


if __name__ == "__main__":
    main()
