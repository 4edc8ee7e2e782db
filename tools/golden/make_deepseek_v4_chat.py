#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/text/deepseek_v4_chat.jsonl: conversations, and what the encoder that DeepSeek-V4's checkpoints ship makes
of them, by sglang's copy of it (a file of the wheel from PyPI, run by itself; sglang needs not be installed).

usage: pip download --no-deps sglang==0.5.20
       python tools/golden/make_deepseek_v4_chat.py sglang-0.5.20-*.whl

A line is {"messages", "tools"?, "vars"?, "add_generation_prompt", "expect"}; "expect" is a text, or the hash of a long one (FNV-1a,
64 bits: "fnv:" and 16 hex digits), or null where the encoder fails. Arguments of calls are JSON texts in "messages" for the encoder, as its clients send them, and objects in some of the lines.
"""
import copy
import json
import pathlib
import random
import sys
import types
import zipfile

ROOT = pathlib.Path(__file__).parent.parent.parent
OUT = ROOT / "tests/data/text/deepseek_v4_chat.jsonl"
INSIDE = "sglang/srt/entrypoints/openai/encoding_dsv4.py"
PINNED = "sglang-0.5.20"
TEXTS = ["", "Hello", "How do I boil an egg?", " leading and trailing ", "two\nlines\n", "Größe, Ω, 東京, 🙂", "<think>x</think>", "a\n\n\nb",
         "{curly} \"quoted\" \\back", "<tool_result>fake</tool_result>", "0", "1 < 2 & 3 > 2"]
TASKS = ["action", "query", "authority", "domain", "title", "read_url"]


def load_encoder(wheel):
    if not pathlib.Path(wheel).name.startswith(PINNED):
        raise SystemExit(f"want a wheel of {PINNED}, got {wheel}")
    module = types.ModuleType("encoding_dsv4")
    exec(compile(zipfile.ZipFile(wheel).read(INSIDE), INSIDE, "exec"), module.__dict__)
    return module


def tool(rng):
    city = {"type": "string", "description": 'A city, "quoted" <b> naïve Ω'}
    return {"type": "function", "function": {
        "name": rng.choice(["get_weather", "search"]), "description": "Weather now",
        "parameters": {"type": "object", "properties": {"city": city, "n": {"type": "integer", "enum": [1, 2.5, None]}}, "required": ["city"]}}}


def call(rng, k):
    arguments = {"city": rng.choice(TEXTS), "n": rng.randrange(100), "x": rng.choice([0.5, 1e22, -3.25, True, None]), "l": [1, None, {"a": "é"}]}
    out = {"type": "function", "function": {"name": "get_weather", "arguments": json.dumps(arguments, ensure_ascii=rng.random() < 0.5)}}
    kind = rng.random()
    if kind < 0.1:
        out["function"]["arguments"] = "no json"
    elif kind < 0.2:
        out["function"]["arguments"] = "{}"
    if rng.random() < 0.9:
        out["id"] = f"call{k}"
    return out


def conversation(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(TEXTS)})
        if rng.random() < 0.2:
            messages[0]["tools"] = [tool(rng) for _ in range(rng.randrange(1, 3))]
        if rng.random() < 0.2:
            messages[0]["response_format"] = {"type": "object", "properties": {"é": {"type": "number"}}}
    for turn in range(rng.randrange(1, 5)):
        kind = rng.random()
        if kind < 0.12:
            messages.append({"role": "developer", "content": rng.choice(TEXTS)})
        for _ in range(0 if kind < 0.08 else rng.choice([1, 1, 1, 2])):
            messages.append({"role": "user", "content": rng.choice(TEXTS)})
        if rng.random() < 0.1 and messages and messages[-1]["role"] == "user":
            messages[-1]["task"] = rng.choice(TASKS + ["unknown"])
        if rng.random() < 0.1:
            messages.append({"role": "latest_reminder", "content": rng.choice(TEXTS)})
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            answer = {"role": "assistant", "content": rng.choice(TEXTS)}
            if rng.random() < 0.4:
                answer["reasoning_content"] = rng.choice(TEXTS)
            if rng.random() < 0.05:
                answer["wo_eos"] = True
            messages.append(answer)
            if rng.random() < 0.3:
                answer["tool_calls"] = [call(rng, k) for k in range(rng.randrange(1, 4))]
                answers = [{"role": "tool", "tool_call_id": c.get("id", "other"),
                            "content": rng.choice(TEXTS) if rng.random() < 0.8 else [{"type": "text", "text": "part"}, {"type": "image"}, {"type": "text", "text": "é"}]}
                           for c in answer["tool_calls"]]
                rng.shuffle(answers)
                messages += answers
    if rng.random() < 0.02:
        messages.append({"role": "oracle", "content": "x"})
    return messages or [{"role": "user", "content": "x"}]


def short(text):
    if len(text) < 400:
        return text
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"fnv:{value:016x}"


def main():
    encoder = load_encoder(sys.argv[1])
    rng = random.Random(20261122)
    lines = []
    while len(lines) < 300:
        messages = conversation(rng)
        line = {"messages": messages, "add_generation_prompt": True, "vars": {}}
        mode = rng.choice(["thinking", "chat"])
        line["vars"][rng.choice(["thinking", "enable_thinking"])] = mode == "thinking"
        if rng.random() < 0.2:
            line["vars"] = {"thinking_mode": mode}
        options = {"thinking_mode": mode}
        if rng.random() < 0.3:
            options["drop_thinking"] = line["vars"]["drop_thinking"] = rng.random() < 0.5
        if rng.random() < 0.2:
            options["reasoning_effort"] = line["vars"]["reasoning_effort"] = rng.choice(["max", "high"])
        given = copy.deepcopy(messages)
        if rng.random() < 0.25:
            line["tools"] = [tool(rng) for _ in range(rng.randrange(1, 3))]
            if given[0]["role"] != "system":
                given.insert(0, {"role": "system", "content": ""})
            given[0]["tools"] = line["tools"]
        try:
            line["expect"] = short(encoder.encode_messages(given, **options))
        except Exception:
            line["expect"] = None
        if rng.random() < 0.3:  # clients of ours may send objects
            for message in messages:
                for c in message.get("tool_calls", []):
                    try:
                        c["function"]["arguments"] = json.loads(c["function"]["arguments"])
                    except ValueError:
                        pass
        lines.append(json.dumps(line, ensure_ascii=False))
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(lines)} lines, {sum(json.loads(line)['expect'] is None for line in lines)} of them faults")


main()
