# SPDX-License-Identifier: Apache-2.0
"""What the losses of preference pairs are held against: TRL's DPOTrainer on the bundled model, in float64, with the adapter of
tests/golden/eval as the policy and the base as the reference. Of each of five losses the loss, rewards, margin and accuracy of
four pairs and the gradients of the adapter's matrices; and losses and margins of 30 optimizer steps. Writes
tests/golden/dpo/: expected.json, with the pairs as TRL tokenises them, and gradients.safetensors.

usage: make_dpo.py            (tools/requirements/dpo.txt)
"""
import json
import pathlib
import tempfile

import torch
from datasets import Dataset
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, ADAPTER, OUT = ROOT / "models/tiny-qwen3", ROOT / "tests/golden/eval/adapter", ROOT / "tests/golden/dpo"
BETA, SMOOTHING, STEPS, LR = 0.25, 0.125, 30, 1e-3
TYPES = ("sigmoid", "sigmoid_norm", "robust", "hinge", "ipo")
PAIRS = [
    {"prompt": "Question: What colour is the sky?\nAnswer:", "chosen": " The sky is blue.", "rejected": " It is green, I think."},
    {"prompt": "Question: What is 2 plus 2?\nAnswer:", "chosen": " 4.", "rejected": " I would rather not say what that is."},
    {"prompt": "Name a day:", "chosen": " Tuesday is a day of the week.", "rejected": " No."},
    {"chosen": "The opposite of wet is dry.", "rejected": "The opposite of wet is wet, or so they say."},
]


def make_trainer():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, ADAPTER, is_trainable=True, autocast_adapter_dtype=False).to(torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    parts = []
    for rows in (PAIRS[:3], PAIRS[3:]):  # TRL finds the prompt of a set whose first record has none
        config = DPOConfig(output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=True, bf16=False, beta=BETA,
                           label_smoothing=SMOOTHING, gradient_checkpointing=False)
        parts.append(DPOTrainer(model=model, processing_class=tokenizer, train_dataset=Dataset.from_list(rows), args=config))
        # The copy that TRL takes as the reference of an adapter that is there already; without it the reference is the base.
        model.delete_adapter("ref")
    trainer = parts[0]
    rows = [row for part in parts for row in part.train_dataset]
    return trainer, [{key: row[key] for key in ("prompt_ids", "chosen_ids", "rejected_ids")} for row in rows]


def loss_of(trainer, rows, loss_type):
    """The mean loss, and the metrics that TRL logs."""
    trainer.loss_types = [loss_type]
    trainer._metrics["train"].clear()
    inputs = trainer.data_collator([dict(row) for row in rows])
    loss = trainer._compute_loss(trainer.model, inputs, return_outputs=False)
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    names = ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected")
    return loss, {name: metrics[name] for name in names}


def gradients_of(model):
    return {name.replace(".default", ""): parameter.grad.float().contiguous()
            for name, parameter in model.named_parameters() if parameter.requires_grad}


def take_steps(trainer, rows):
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    out = []
    for step in range(STEPS):
        batch = [rows[(2 * step + k) % len(rows)] for k in range(2)]
        optimizer.zero_grad()
        loss, metrics = loss_of(trainer, batch, "sigmoid")
        loss.backward()
        optimizer.step()
        out.append({"loss": loss.item(), "margin": metrics["rewards/margins"]})
    return out


def main():
    trainer, rows = make_trainer()
    trainer.model.train()
    expected = {"beta": BETA, "label_smoothing": SMOOTHING, "lr": LR, "texts": PAIRS, "pairs": rows, "losses": {}}
    gradients = {}
    for loss_type in TYPES:
        trainer.model.zero_grad()
        loss, metrics = loss_of(trainer, rows, loss_type)
        loss.backward()
        expected["losses"][loss_type] = {"loss": loss.item(), **metrics}
        gradients |= {f"{loss_type}/{name}": grad for name, grad in gradients_of(trainer.model).items()}
    expected["steps"] = take_steps(trainer, rows)
    OUT.mkdir(exist_ok=True)
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    save_file(gradients, OUT / "gradients.safetensors")
    print(json.dumps(expected["losses"], indent=1), expected["steps"][-1])


if __name__ == "__main__":
    main()
