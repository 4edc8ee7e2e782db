#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cookbook's weights tools on adapters of a server: downloads of both kinds of checkpoints (one of them encrypted on
the way), a merge into the base model and a PEFT adapter; both must reproduce the server's logprobs. Adapters of experts
with a rank of their own (no --expert-rank full) are merged only: the cookbook makes no PEFT adapter of them.

usage: cookbook_download.py MODEL_DIR NAME     (its name on the server; TINKER_BASE_URL and TINKER_API_KEY say which server)
"""
import json
import pathlib
import sys
import tempfile

import tinker
import torch
from peft import PeftModel
from tinker import types
from tinker_cookbook import weights
from transformers import AutoModelForCausalLM

TEXT = [5, 9, 17, 33, 65, 12, 40, 7]


def datum():
    n = len(TEXT) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(TEXT[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=TEXT[1:], dtype="int64", shape=[n]),
                        "weights": types.TensorData(data=[1.0] * n, dtype="float32", shape=[n])})


def logprobs(model):
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([TEXT[:-1]])).logits[0].float(), -1)
    return [rows[i, token].item() for i, token in enumerate(TEXT[1:])]


def distance(got, want):
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(got, want))


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def main():
    base, base_name = sys.argv[1:3]
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=base_name, rank=8, train_unembed=False).result()
    for _ in range(6):
        client.forward_backward([datum()], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=3e-3)).result()
    ours = list(client.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data)
    paths = [client.save_state("download").result().path, client.save_weights_external("export").result().path]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for i, path in enumerate(paths):
            weights.download(tinker_path=path, output_dir=str(root / str(i)))
        one, two = ((root / str(i) / "adapter_model.safetensors").read_bytes() for i in range(2))
        assert one == two, "the two downloads differ"
        weights.build_hf_model(base_model=base, adapter_path=str(root / "0"), output_path=str(root / "merged"),
                               dtype="float32")
        models = [("merged", load(root / "merged"))]
        # The converter gives experts the rank of the config.
        if not json.loads((root / "0" / "adapter_config.json").read_text())["rank_pattern"]:
            weights.build_lora_adapter(base_model=base, adapter_path=str(root / "0"), output_path=str(root / "peft"))
            models.append(("peft", PeftModel.from_pretrained(load(base), root / "peft")))
        # The server computes in bfloat16: each rounding is 2^-9, the merged model none.
        for name, model in models:
            worst = distance(logprobs(model), ours)
            print(f"{name}: largest difference of logprobs {worst:.4f}")
            assert worst < 0.05, name
        learned = distance(logprobs(load(base)), ours)
        print(f"without the adapter: {learned:.4f}")
        assert learned > 0.1, "the adapter changes too little to tell"
    service.close("success")


if __name__ == "__main__":
    main()
