# SPDX-License-Identifier: Apache-2.0
"""What gpt_oss.py left, by transformers and PEFT: the model with experts in MXFP4 and the adapter say what they were taught.

usage: gpt_oss_peft.py FOLDER        needs tools/requirements/golden.txt
"""
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, Mxfp4Config


def main(folder):
    packed = f"{folder}/mxfp4"
    tokenizer = AutoTokenizer.from_pretrained(packed)
    base = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.bfloat16, device_map="cpu",
                                                quantization_config=Mxfp4Config(dequantize=True))
    model = PeftModel.from_pretrained(base, f"{folder}/adapter")
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "Say hello to Rome."}], add_generation_prompt=True,
                                          return_dict=True, return_tensors="pt")
    said = tokenizer.decode(model.generate(**asked, max_new_tokens=40, do_sample=False)[0, asked["input_ids"].shape[1]:])
    want = ("<|channel|>analysis<|message|>A greeting.<|end|><|start|>assistant<|channel|>final<|message|>Hello, Rome!"
            "<|return|>")
    assert said == want, said
    print("gpt-oss: MXFP4 and adapter answer in transformers and PEFT")


if __name__ == "__main__":
    main(*sys.argv[1:])
