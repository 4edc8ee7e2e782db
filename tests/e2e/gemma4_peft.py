# SPDX-License-Identifier: Apache-2.0
"""What gemma4.py left, by transformers and PEFT: the model with the adapter, and the two merged, say what they were taught.

usage: gemma4_peft.py FOLDER        needs tools/requirements/golden.txt
"""
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder):
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/tuned")
    load = lambda name: AutoModelForCausalLM.from_pretrained(f"{folder}/{name}", dtype=torch.bfloat16)
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "Say hello to Rome."}], add_generation_prompt=True,
                                          return_dict=True, return_tensors="pt")
    for name, model in [("adapter", PeftModel.from_pretrained(load("tuned"), f"{folder}/adapter")), ("merged", load("merged"))]:
        said = tokenizer.decode(model.generate(**asked, max_new_tokens=40, do_sample=False)[0, asked["input_ids"].shape[1]:])
        assert said == "<|channel>thought\nA greeting.\n<channel|>Hello, Rome!<turn|>", (name, said)
    print("Gemma 4: adapter and merged model answer in transformers and PEFT")


if __name__ == "__main__":
    main(*sys.argv[1:])
