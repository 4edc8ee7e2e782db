#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the goldens of the loss that trains DeepSeek-V4's indexers, from the definition in float64.

usage: python tools/golden/make_deepseek_v4_indexer.py [--out tests/golden]

That loss is ours (docs/numerics.md), so the truth is golden_deepseek_v4_definition.py's. Model, adapters, layout and noise
as in make_deepseek_v4_mtp.py, without the layer of multi-token prediction.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np
import torch
from safetensors.torch import save_file

import golden_deepseek_v4 as v4
import make_deepseek_v4_mtp as mtp
from golden_reference import save_json

CASE = "deepseek_v4_indexer"
CONFIG = dict(mtp.CONFIG, num_hidden_layers=3, layer_types=[v4.SPARSE, v4.HEAVY, v4.SPARSE], num_nextn_predict_layers=0)
INDEXER = [f"model.layers.{i}.self_attn.compressor.indexer.{name}" for i in (0, 2)
           for name in ("kv_proj", "gate_proj", "q_b_proj", "scorer.weights_proj")]
MODULES = {"a": INDEXER + ["model.layers.0.self_attn.q_a_proj", "model.layers.2.self_attn.kv_proj"],
           "b": [INDEXER[-1], INDEXER[2], "model.layers.0.self_attn.q_b_proj"]}


class Reference(mtp.Reference):
    CONFIG = CONFIG
    BESIDE = "indexer_loss"

    def losses(self, seq):
        """Cross-entropy of each token, and the indexers' losses, a sum over layers."""
        n = len(seq["tokens"])
        targets = torch.tensor(seq["targets"])
        weights = torch.tensor(np.array(seq.get("weights", [1.0] * n), np.float32).astype(np.float64)).to(self.dtype)
        wide = torch.float32 if self.dtype == torch.bfloat16 else self.dtype
        model, ids = self.model(seq.get("adapter", 0)), torch.tensor(seq["tokens"])
        model.trains_indexers = True
        logits = model.head("", model.states(ids)[-1])
        self.margins += model.margins
        lp = logits.to(wide).log_softmax(-1)[torch.arange(n), targets]
        own = torch.where(weights != 0, -weights.to(wide) * lp, torch.zeros_like(lp))
        return logits, torch.where(weights != 0, lp, torch.zeros_like(lp)), own, sum(model.indexer_losses)

    def logits(self, seq):
        return self.losses({**seq, "targets": seq["tokens"]})[0]

    def values(self, request, wants):
        out = {}
        logits, lp, loss, indexer_loss = self.backward(request)
        if "logits" in wants:
            out["logits"] = logits
        if "logprobs" in wants:
            out["logprobs"] = lp
        if "loss" in wants:
            out.update({"loss": loss, "indexer_loss": indexer_loss, "loss_sum": loss.sum(keepdims=True),
                        "indexer_loss_sum": indexer_loss.sum(keepdims=True)})
        return out


class Maker(mtp.Maker):
    CONFIG, REFERENCE = CONFIG, Reference

    def requests(self):
        take = lambda lengths, adapters, gap=1e-4: [self.sequence(n, k, gap) for n, k in zip(lengths, adapters)]
        step = dict(steps=4, lr=0.01, eps=1e-4, weight_decay=0.05, grad_clip_norm=2.0)
        wants = ["logits", "logprobs", "loss", "adapter_grads"]
        return {"main": {"sequences": take([26, 1, 7, 19], [1, 0, 2, 0]), "want": wants, "indexer_loss": 0.5},
                # Few tokens, whose choices bfloat16 shares.
                "short": {"sequences": take([13, 9, 15], [0, 1, 2], 0.01), "want": wants + ["param_grads"], "indexer_loss": 1.5},
                "train_params": {"sequences": take([21, 9], [0, 0]), "want": [], "indexer_loss": 0.75,
                                 "train": {"what": "params", **step}},
                "train_adapters": {"sequences": take([21, 10], [1, 2]), "want": [], "indexer_loss": 0.75,
                                   "train": {"what": "adapters", **step}}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    root = os.path.join(args.out, CASE)
    os.makedirs(os.path.join(root, "model"), exist_ok=True)
    gen = torch.Generator().manual_seed(11)
    tensors = {k: v for k, v in mtp.draw(CONFIG, gen).items() if not k.startswith("mtp.")}
    save_file(tensors, os.path.join(root, "model", "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(root, "model", "config.json"), "w", encoding="utf-8") as f:
        json.dump(CONFIG, f, indent=1)
        f.write("\n")
    for name, rank, alpha in (("a", 3, 8), ("b", 2, 6)):
        mtp.write_adapter(os.path.join(root, name), tensors, MODULES[name], rank, alpha, gen)
    mtp.write_goldens(args.out, CASE, Maker(root, 11))


if __name__ == "__main__":
    main()
