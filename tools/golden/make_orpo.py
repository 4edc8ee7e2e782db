# SPDX-License-Identifier: Apache-2.0
"""What --loss orpo is held against: TRL's experimental ORPOTrainer on the bundled model, in float64 (its odds are float32), with
the adapter of tests/golden/eval. The loss and what TRL logs of four pairs with the gradients of the adapter's matrices, and
losses and margins of 30 optimizer steps. Two of the pairs prefer the answer that the model finds unlikely, so that their odds
weigh as much as the chosen answers' own loss. Writes tests/golden/orpo/: expected.json, with the pairs as TRL tokenises them, and
gradients.safetensors.

usage: make_orpo.py            (tools/requirements/dpo.txt)
"""
import json
import pathlib
import tempfile

import torch
from datasets import Dataset
from make_dpo import ADAPTER, MODEL, PAIRS, gradients_of
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/orpo"
BETA, STEPS, LR = 2.0, 30, 1e-3
COMMON = "The opposite of wet is"  # what both answers of the last pair begin with: ORPO wants a prompt


def texts():
    last = {"prompt": COMMON} | {side: PAIRS[3][side].removeprefix(COMMON) for side in ("chosen", "rejected")}
    pairs = PAIRS[:3] + [last]
    for i in (1, 2):
        pairs[i] = {"prompt": pairs[i]["prompt"], "chosen": pairs[i]["rejected"], "rejected": pairs[i]["chosen"]}
    return pairs


def make_trainer():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, ADAPTER, is_trainable=True, autocast_adapter_dtype=False).to(torch.float64)
    config = ORPOConfig(output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=True, bf16=False, beta=BETA,
                        gradient_checkpointing=False, remove_unused_columns=False, disable_dropout=True)
    trainer = ORPOTrainer(model=model, processing_class=AutoTokenizer.from_pretrained(MODEL), args=config,
                          train_dataset=Dataset.from_list(texts()))
    return trainer, list(trainer.train_dataset)


def ids_of(row):
    """Prompt and answers of a row that ORPOTrainer has tokenised; labels are -100 where the prompt is."""
    prompt = sum(label == -100 for label in row["chosen_labels"])
    assert row["chosen_input_ids"][:prompt] == row["rejected_input_ids"][:prompt]
    return {"prompt_ids": row["chosen_input_ids"][:prompt], "chosen_ids": row["chosen_input_ids"][prompt:],
            "rejected_ids": row["rejected_input_ids"][prompt:]}


def loss_of(trainer, rows):
    """The loss of a batch, and the metrics that TRL logs."""
    loss, metrics = trainer.get_batch_loss_metrics(trainer.model, trainer.data_collator([dict(row) for row in rows]))
    names = ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "nll_loss", "log_odds_ratio")
    return loss, {name: metrics[name] for name in names}


def take_steps(trainer, rows):
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    out = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, metrics = loss_of(trainer, [rows[(2 * step + k) % len(rows)] for k in range(2)])
        loss.backward()
        optimizer.step()
        out.append({"loss": loss.item(), "margin": metrics["rewards/margins"]})
    return out


def main():
    trainer, rows = make_trainer()
    trainer.model.train()
    trainer.model.zero_grad()
    loss, metrics = loss_of(trainer, rows)
    loss.backward()
    expected = {"beta": BETA, "lr": LR, "texts": texts(), "pairs": [ids_of(row) for row in rows],
                "loss": {"loss": loss.item(), **metrics}}
    gradients = gradients_of(trainer.model)
    expected["steps"] = take_steps(trainer, rows)
    OUT.mkdir(exist_ok=True)
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    save_file(gradients, OUT / "gradients.safetensors")
    print(json.dumps(expected["loss"], indent=1), expected["steps"][-1])


if __name__ == "__main__":
    main()
