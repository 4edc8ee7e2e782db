# SPDX-License-Identifier: Apache-2.0
"""What `strata eval` is held against: loss and accuracy of examples/answers_heldout.jsonl under the bundled model and under an
adapter that PEFT makes, by transformers in float64 and float32. Writes tests/golden/eval/: adapter/ and expected.json.

usage: make_eval.py            (tools/requirements/golden.txt)
"""
import json
import pathlib

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, DATA, OUT = ROOT / "models/tiny-qwen3", ROOT / "examples/answers_heldout.jsonl", ROOT / "tests/golden/eval"


def examples(tokenizer):
    """Ids of each conversation, and from which one on the answer stands."""
    for line in DATA.read_text().splitlines():
        messages = json.loads(line)["messages"]
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        assert whole.startswith(prompt)
        encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        first = next(i for i, (_, end) in enumerate(encoded["offset_mapping"]) if end > len(prompt))
        yield encoded["input_ids"], first


@torch.no_grad()
def score(model, data):
    loss, trained, right = 0.0, 0, 0
    for ids, first in data:
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
        logprobs = torch.log_softmax(logits, -1)
        for t in range(first, len(ids)):
            loss -= logprobs[t - 1, ids[t]].item()
            right += int(logprobs[t - 1].argmax().item() == ids[t])
            trained += 1
    return {"loss": loss / trained, "accuracy": right / trained, "trained_tokens": trained}


def make_adapter(path):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(path)
    (path / "README.md").unlink(missing_ok=True)
    config = json.loads((path / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "models/tiny-qwen3"
    (path / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    make_adapter(OUT / "adapter")
    data = list(examples(AutoTokenizer.from_pretrained(MODEL)))
    expected = {}
    for dtype in (torch.float64, torch.float32):
        name = str(dtype).removeprefix("torch.")
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype, attn_implementation="eager").eval()
        base = score(model, data)
        adapter = score(PeftModel.from_pretrained(model, OUT / "adapter", autocast_adapter_dtype=False).to(dtype), data)
        expected[name] = {"base": base, "adapter": adapter}
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(json.dumps(expected, indent=1))


if __name__ == "__main__":
    main()
