# SPDX-License-Identifier: Apache-2.0
"""PEFT in its best settings: model and adapter in bf16, fused attention, cross-entropy in chunks with its gradient by
hand, a fused AdamW. Run by run.py."""
import importlib.metadata
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from peer import serve
from works import RANK, STEPS

CHUNK = 256  # tokens whose logits are there at once
ADAPTERS = 8


class PeftPeer:
    def __init__(self, model, threads, _quick):
        torch.manual_seed(1)
        torch.set_num_threads(threads)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa")
        self.config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model = get_peft_model(base, self.config, adapter_name="a0", autocast_adapter_dtype=False)
        self.vocab = base.config.vocab_size
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        of = importlib.metadata.version
        self.versions = f"PEFT {of('peft')} (transformers {of('transformers')}, torch {of('torch')})"

    def tokens(self, *shape):
        return torch.randint(0, self.vocab, shape)

    def run(self, work):
        return self.train(work) if work.kind == "train" else self.decode_with_adapters(work)

    def train(self, work):
        """A step: forward, backward, optimizer, as strata bench times it."""
        self.model.train()
        if work.recompute:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()
        ids, targets = self.tokens(work.batch, work.length), self.tokens(work.batch, work.length)
        start = time.perf_counter()
        self.backward(ids, targets.flatten())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return work.tokens / (time.perf_counter() - start)

    def backward(self, ids, targets):
        causal = self.model.base_model.model  # Qwen3ForCausalLM with adapters in its layers
        hidden = causal.model(input_ids=ids, use_cache=False).last_hidden_state
        rows = hidden.detach().flatten(0, 1).requires_grad_()
        for begin in range(0, len(rows), CHUNK):
            logits = causal.lm_head(rows[begin:begin + CHUNK])
            loss = torch.nn.functional.cross_entropy(logits.float(), targets[begin:begin + CHUNK], reduction="sum")
            (loss / len(rows)).backward()
        hidden.backward(rows.grad.view_as(hidden))

    def decode_with_adapters(self, work):
        for i in range(1, ADAPTERS):
            if f"a{i}" not in self.model.peft_config:
                self.model.add_adapter(f"a{i}", self.config, autocast_adapter_dtype=False)
                self.model.to(torch.bfloat16)
        self.model.eval()
        names = [f"a{i}" for i in range(ADAPTERS)]
        with torch.inference_mode():
            out = self.model(input_ids=self.tokens(work.batch, work.length), use_cache=True, adapter_names=names,
                             logits_to_keep=1)
            start = time.perf_counter()
            for _ in range(STEPS):
                out = self.model(input_ids=out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values,
                                 use_cache=True, adapter_names=names)
            return work.tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    serve(PeftPeer)
