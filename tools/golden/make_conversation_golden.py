#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/text/conversation_forms.jsonl: conversations in the forms that people and trainers write them in, and
what transformers renders of the same conversations in the one form that its documentation wants.

    pip install -r tools/requirements/text.txt
    python tools/golden/make_conversation_golden.py

Each conversation is drawn in transformers' form first: arguments are objects (texts for a template that joins them to
text), contents are texts, roles are system, user, assistant and tool. Then it is written in another form, which is all
that the line has; nothing of ours runs here.
"""
import copy
import datetime
import json
import pathlib
import random
import sys

import transformers
import transformers.utils.chat_template_utils as chat_utils
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).parent.parent.parent
OUT = ROOT / "tests/data/text/conversation_forms.jsonl"
TEMPLATES = [ROOT / "tests/data/third_party/templates", ROOT / "tests/data/text/templates"]
NUM_CONVERSATIONS, SEED = 60, 20261129
WANT_TEXT = {"deepseek_v3"}  # templates that join arguments to text, where an object is an error
TEXTS = ["What is it?", "Sunny, 22 degrees.\nNo wind.", "naïve Ω 東京 😀", "a \"quoted\" {brace} \\ slash", "Yes", "7",
         "Let me see.", "<b>bold</b> & more", "one\n\ntwo"]
VALUES = ["Lima", 3, 2.5, True, None, [1, "é"], {"a": {"b": []}}, "", "7", "two\nlines"]
TOOLS = [{"type": "function", "function": {"name": name, "description": 'Now, "quoted" Ω', "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}} for name in ("weather", "now")]


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat("2026-01-31")


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def conversation(rng, index):
    """In transformers' form."""
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(TEXTS)})
    has_tools = index % 2 == 0
    for turn in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": rng.choice(TEXTS)})
        if has_tools and rng.random() < 0.7:
            calls = []
            for k in range(rng.randrange(1, 3)):
                names = rng.sample(["city", "n", "x", "é"], rng.randrange(0, 4))
                calls.append({"id": f"{index:03}{turn:02}{k:04}", "type": "function", "function": {
                    "name": rng.choice(["weather", "now"]), "arguments": {name: rng.choice(VALUES) for name in names}}})
            answer = {"role": "assistant", "content": rng.choice(["", "Let me see."]), "tool_calls": calls}
            if rng.random() < 0.3:
                answer["reasoning_content"] = rng.choice(TEXTS)
            messages.append(answer)
            messages += [{"role": "tool", "content": rng.choice(TEXTS), "tool_call_id": call["id"],
                          "name": call["function"]["name"]} for call in calls]
        answer = {"role": "assistant", "content": rng.choice(TEXTS)}
        if rng.random() < 0.4:
            answer["reasoning_content"] = rng.choice(TEXTS)
        messages.append(answer)
    return {"messages": messages, **({"tools": TOOLS} if has_tools else {})}


def other_call(rng, call):
    function = call["function"]
    arguments = function["arguments"]
    kind = rng.randrange(4)
    if kind == 1:
        arguments = json.dumps(arguments)
    elif kind == 2:
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    elif kind == 3 and not arguments:
        arguments = rng.choice([None, "", "{}"])
    if rng.random() < 0.3:  # without `function` around
        return {"id": call["id"], "name": function["name"], rng.choice(["arguments", "parameters"]): arguments}
    out = {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}
    if rng.random() < 0.3:
        del out["type"]
    return out


def other_content(rng, content):
    lines = content.split("\n")
    if not content or rng.random() < 0.6:
        return content
    return [{"type": "text", "text": line, **({"image_url": None} if rng.random() < 0.3 else {})} for line in lines]


def other_message(rng, message, share_gpt):
    out = copy.deepcopy(message)
    role = message["role"]
    if role == "system" and rng.random() < 0.4:
        out["role"] = "developer"
    if role == "tool":
        out["role"] = rng.choice(["tool", "function", "ipython", "observation"])
    out["content"] = other_content(rng, message["content"])
    if "reasoning_content" in out:
        out[rng.choice(["reasoning_content", "thinking", "reasoning"])] = out.pop("reasoning_content")
    calls = message.get("tool_calls")
    if calls:
        made = [other_call(rng, call) for call in calls]
        if not message["content"]:
            out["content"] = rng.choice(["", None])
            if rng.random() < 0.3:
                del out["content"]
        kind = rng.randrange(3)
        if kind == 0:
            out["tool_calls"] = json.dumps(made)
        elif kind == 1 and len(made) == 1:
            del out["tool_calls"]
            out["function_call"] = {"id": calls[0]["id"], **made[0].get("function", made[0])}
        else:
            out["tool_calls"] = made
    elif rng.random() < 0.3:
        out["tool_calls"] = None
    if share_gpt and not calls and isinstance(out["content"], str):
        names = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}
        out["from"] = names[role]
        out["value"] = out.pop("content")
        del out["role"]
    if rng.random() < 0.2:
        out["weight"] = 1 if role == "assistant" else None
    return out


def other_form(rng, request):
    share_gpt = rng.random() < 0.25
    out = {"messages": [other_message(rng, message, share_gpt) for message in request["messages"]]}
    if "tools" in request:
        tools = copy.deepcopy(request["tools"])
        kind = rng.randrange(4)
        if kind == 1:
            tools = [tool["function"] for tool in tools]
        elif kind == 2:
            tools = json.dumps(tools)
        elif kind == 3:
            tools = [json.dumps(tool) for tool in tools]
        out["tools"] = tools
    return out


def call_list(message):
    """The calls of a message in another form."""
    calls = message.get("tool_calls")
    calls = json.loads(calls) if isinstance(calls, str) else calls
    return calls or ([message["function_call"]] if "function_call" in message else [])


def with_text_arguments(request, given):
    """For templates that want texts: what was an object, as Python writes it; a text as it was written."""
    out = copy.deepcopy(request)
    for message, other in zip(out["messages"], given["messages"]):
        for call, written in zip(message.get("tool_calls", []), call_list(other)):
            written = written.get("function", written)
            arguments = written.get("arguments", written.get("parameters"))
            if not isinstance(arguments, str) or not arguments:
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            call["function"]["arguments"] = arguments
    return out


def main():
    if transformers.__version__ != "5.24.0":
        sys.exit("wanted the versions in tools/requirements/text.txt")
    chat_utils.datetime = FixedDate
    rng = random.Random(SEED)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")
    files = sorted(path for folder in TEMPLATES for path in folder.glob("*.jinja"))
    rendered = {path.stem: 0 for path in files}
    with open(OUT, "w") as out:
        for index in range(NUM_CONVERSATIONS):
            request = conversation(rng, index)
            given = other_form(rng, request)
            expect = {}
            for path in files:
                tokenizer.chat_template = path.read_bytes().decode()
                asked = with_text_arguments(request, given) if path.stem.removesuffix("_training") in WANT_TEXT else request
                for prompt in (False, True):
                    messages = asked["messages"][:-1] if prompt else asked["messages"]
                    try:
                        text = tokenizer.apply_chat_template(copy.deepcopy(messages), tools=asked.get("tools"),
                                                             add_generation_prompt=prompt, tokenize=False)
                        hashed = f"{fnv(text.encode()):016x}"
                        rendered[path.stem] += 1
                    except Exception:
                        hashed = "error"
                    expect.setdefault(path.stem, []).append(hashed)
            out.write(json.dumps({**given, "expect": expect}) + "\n")
    print("rendered without error:", rendered)


if __name__ == "__main__":
    main()
