# SPDX-License-Identifier: Apache-2.0
"""What GRPO is held against: TRL's GRPOTrainer on the bundled model, in float64, with the adapter of tests/golden/eval as the
policy. Completions and rewards are given (one reward is missing, one group's are equal), so that TRL makes advantages of them,
and the logprobs that they were sampled with are off from the policy's, so that some ratios are clipped. Of each loss with each
importance the loss and the gradients of the adapter's matrices. Writes tests/golden/grpo/: expected.json and
gradients.safetensors.

usage: make_grpo.py            (tools/requirements/dpo.txt)
"""
import json
import math
import pathlib
import tempfile

import torch
from datasets import Dataset
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, ADAPTER, OUT = ROOT / "models/tiny-qwen3", ROOT / "tests/golden/eval/adapter", ROOT / "tests/golden/grpo"
MAX_TOKENS = 16
EPSILON = 0.2
CISPO_HIGH = 5.0  # as the paper of CISPO has it and TRL's documentation says; its default is EPSILON
CASES = (("dapo", "token"), ("grpo", "token"), ("dr_grpo", "token"), ("cispo", "token"), ("dapo", "sequence"), ("grpo", "sequence"))
# Prompts of equal length: TRL pads others on the left, where eager attention in float64 gives NaN.
GROUPS = [
    ("What is 2 plus 2?", [" It is 4.", " 5", " I think that the answer is 4.", " Ask somebody else."], [1.0, 0.0, 0.75, None]),
    ("What is 3 plus 4?", [" 7", " Seven is a day.", " No.", " 8"], [1.0, 0.5, -0.25, 0.0]),
    ("What is 5 plus 1?", [" 6.", " six, or so they say.", " 2", " far away"], [0.5, 0.5, 0.5, 0.5]),
]


def make_trainer(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, ADAPTER, is_trainable=True, autocast_adapter_dtype=False).to(torch.float64)
    rewards = {(prompt, text): reward for prompt, texts, values in GROUPS for text, reward in zip(texts, values)}
    prompts = [prompt for prompt, texts, _ in GROUPS for _ in texts]
    texts = [text for _, group, _ in GROUPS for text in group]

    def reward(prompts, completions, **_):
        return [rewards[pair] for pair in zip(prompts, completions)]

    def rollout(prompts, trainer):
        ids = [tokenizer(text)["input_ids"] for text in texts]
        return {"prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts], "completion_ids": ids,
                "logprobs": [[0.0] * len(tokens) for tokens in ids]}

    config = GRPOConfig(output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=True, bf16=False, num_generations=4,
                        per_device_train_batch_size=len(prompts), max_completion_length=MAX_TOKENS, epsilon=EPSILON,
                        gradient_checkpointing=False, beta=0.0, temperature=1.0)
    trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, processing_class=tokenizer,
                          train_dataset=Dataset.from_list([{"prompt": prompt} for prompt, _, _ in GROUPS]), rollout_func=rollout)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    with torch.no_grad():
        inputs = trainer._generate_and_score_completions([{"prompt": prompt} for prompt in prompts])
    inputs["advantages"] = inputs["advantages"].double()
    return trainer, inputs


def add_sampled_logprobs(trainer, inputs):
    """Off from the policy's by up to 0.5 in either direction, as f32 holds them."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, inputs["completion_ids"].size(1))
    off = torch.tensor([0.5 * math.sin(3.0 * i) for i in range(logps.numel())], dtype=torch.float64).view(logps.shape)
    inputs["old_per_token_logps"] = (logps + off).float().double()


def rows_of(inputs):
    rows = []
    for i in range(inputs["completion_ids"].size(0)):
        of_prompt, of_completion = inputs["prompt_mask"][i].bool(), inputs["completion_mask"][i].bool()
        rows.append({"prompt": inputs["prompt_ids"][i][of_prompt].tolist(),
                     "completion": inputs["completion_ids"][i][of_completion].tolist(),
                     "logprobs": inputs["old_per_token_logps"][i][of_completion].tolist(),
                     "advantage": inputs["advantages"][i].item()})
    return rows


def main():
    trainer, inputs = make_trainer(AutoTokenizer.from_pretrained(MODEL))
    add_sampled_logprobs(trainer, inputs)
    expected = {"max_tokens": MAX_TOKENS, "rewards": [rewards for _, _, rewards in GROUPS], "rows": rows_of(inputs), "losses": {}}
    gradients = {}
    for loss_type, importance in CASES:
        trainer.loss_type, trainer.importance_sampling_level = loss_type, importance
        trainer.epsilon_high = CISPO_HIGH if loss_type == "cispo" else EPSILON
        trainer.model.zero_grad()
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        name = f"{loss_type} {importance}"
        expected["losses"][name] = loss.item()
        gradients |= {f"{name}/{parameter}": value.grad.float().contiguous().clone()
                      for parameter, value in ((n.replace(".default", ""), p) for n, p in trainer.model.named_parameters())
                      if value.requires_grad}
    OUT.mkdir(exist_ok=True)
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    save_file(gradients, OUT / "gradients.safetensors")
    print(json.dumps(expected["losses"], indent=1), [row["advantage"] for row in expected["rows"]])


if __name__ == "__main__":
    main()
