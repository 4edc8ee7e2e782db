# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 of E2B's form from random weights to a served model: data with thoughts and calls, training of all its weights and of
an adapter, chat, the openai package against a server (a call, its answer, thoughts, streamed), merge; GGUF files of
it, which answer as it does.

usage: gemma4.py STRATA MODEL FOLDER, of a tiny Gemma 4 that tools/run/tiny_gemma4.sh made. In FOLDER it leaves a tuned model, an
       adapter of it and the two merged, which gemma4_peft.py takes.
"""
import json
import pathlib
import sys

import openai
from gpt_oss import GREETS, LOOKS, check_calls, run, write_data
from openai_serving import KEY, serving


def check_data(strata, model, data):
    shown = run(strata, "data", data, "--model", model, "--show", 6).stdout
    assert f"model\n[[<|channel>thought\n{LOOKS}\n<channel|><|tool_call>call:weather{{city:<|\"|>Paris<|\"|>}}<tool_call|>" in shown, shown
    assert f"{GREETS}\n<channel|>Hello, Paris!<turn|>" in shown, shown


def check_chat(strata, model, *options):
    done = run(strata, "chat", model, *options, "--prompt", "Say hello to Rome.", "--temperature", 0)
    assert done.stdout.endswith("Hello, Rome!\n"), done.stdout


def main(strata, model, folder):
    folder = pathlib.Path(folder)
    folder.mkdir()
    data = write_data(folder / "data.jsonl", thinking="reasoning_content")
    check_data(strata, model, data)
    learns = ["--data", data, "--eval-fraction", 0, "--batch-size", 2]
    tuned, adapter, merged = folder / "tuned", folder / "adapter", folder / "merged"
    run(strata, "train", model, *learns, "--method", "full", "--lr", "5e-3", "--epochs", 80, "--out", tuned)
    check_chat(strata, tuned)
    with serving(strata, folder, "--model", f"gemma={tuned}") as (url, _):
        check_calls(openai.OpenAI(base_url=url + "/v1", api_key=KEY), "gemma", keeps_thoughts=True)
    run(strata, "train", tuned, *learns, "--rank", 8, "--lr", "1e-3", "--epochs", 10, "--out", adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert any("per_layer_model_projection" in name for name in config["target_modules"]), config
    check_chat(strata, tuned, "--adapter", adapter)
    run(strata, "merge", "--model", tuned, "--adapter", adapter, "--out", merged)
    check_chat(strata, merged)
    for kind in ("bf16", "q8_0"):
        run(strata, "convert", merged, "--to", "gguf", "--type", kind, "--out", folder / f"{kind}.gguf")
        check_chat(strata, folder / f"{kind}.gguf")
    print("Gemma 4: data, train, chat, serve, adapter, merge and GGUF")


if __name__ == "__main__":
    main(*sys.argv[1:])
