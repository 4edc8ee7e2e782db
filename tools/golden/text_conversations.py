# SPDX-License-Identifier: Apache-2.0
"""Conversations for the text goldens, drawn from a seed: requests to apply_chat_template."""
import json


def conversation(rng, texts):
    def text():
        return rng.choice(texts)

    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text()})
    turns = rng.randrange(1, 5)
    for turn in range(turns):
        messages.append({"role": "user", "content": "" if rng.random() < 0.1 else text()})
        if turn == turns - 1 and rng.random() < 0.5:
            break
        answer = {"role": "assistant", "content": text()}
        kind = rng.random()
        if kind < 0.15:
            answer["reasoning_content"] = text()
        elif kind < 0.25:
            answer["thinking"] = text()
        elif kind < 0.4:
            answer["content"] = "<think>\n" + text() + "\n</think>\n\n" + text()
        messages.append(answer)
        if rng.random() < 0.25:
            arguments = {"city": text(), "n": rng.randrange(100), "x": rng.random() * 10 ** rng.randrange(-8, 20),
                         "l": [1, None, True, {"a": "é"}]}
            answer["tool_calls"] = [
                {"type": "function", "id": f"call{k}", "function": {
                    "name": "get_weather", "arguments": arguments if rng.random() < 0.7 else json.dumps(arguments)}}
                for k in range(rng.randrange(1, 3))]
            if rng.random() < 0.5:
                answer["content"] = rng.choice(["", None])
            for call in answer["tool_calls"]:
                messages.append({"role": "tool", "name": "get_weather", "tool_call_id": call["id"],
                                 "content": text() if rng.random() < 0.8 else {"temp": 22.5, "ok": True}})
            if rng.random() < 0.7:
                messages.append({"role": "assistant", "content": text()})
    request = {"messages": messages, "add_generation_prompt": rng.random() < 0.5}
    if rng.random() < 0.3:
        city = {"type": "string", "description": 'A city, "quoted" <b> naïve Ω'}
        request["tools"] = [{"type": "function", "function": {
            "name": "get_weather", "description": "Weather now", "parameters": {
                "type": "object", "properties": {"city": city, "n": {"type": "integer", "enum": [1, 2]}},
                "required": ["city"]}}}] * rng.randrange(1, 3)
    variables = {}
    if rng.random() < 0.3:
        variables["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.2:
        variables["date_string"] = "26 Jul 2024"
    if variables:
        request["vars"] = variables
    return request


def parts(rng, texts):
    """A content of typed parts: text, images, and now and then what no template knows."""
    out = []
    for _ in range(rng.randrange(0, 4)):
        kind = rng.random()
        if kind < 0.7:
            out.append({"type": "text", "text": rng.choice(texts)})
        elif kind < 0.9:
            out.append(rng.choice([{"type": "image"}, {"type": "image_url", "image_url": {"url": "a.png"}}]))
        else:
            out.append(rng.choice([{"type": "audio", "audio": "a.wav"}, {"text": "no type"}, {"type": "text"}]))
    return out


def turn_conversation(rng, texts):
    """What templates with strict turns look at: whose turn it is, typed parts, ids of calls, tools in the last turn."""
    def content():
        kind = rng.random()
        if kind < 0.75:
            return rng.choice(texts)
        return parts(rng, texts) if kind < 0.97 else rng.choice(["", 7, True, {"content": "x"}])

    def call(name):
        arguments = {"city": rng.choice(texts), "n": rng.randrange(100), "nested": {"é": [1, 2.5, None, True]}}
        identity = "".join(rng.choice("abcXYZ0189") for _ in range(9 if rng.random() < 0.9 else 8))
        function = {"name": name, "arguments": arguments if rng.random() < 0.8 else json.dumps(arguments)}
        made = {"type": "function", "id": identity, "function": function}
        if rng.random() < 0.05:
            del made["id"]
        return made

    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": content()})
    turns = rng.randrange(1, 5)
    for turn in range(turns):
        messages.append({"role": "user", "content": content()})
        if turn == turns - 1 and rng.random() < 0.5:
            break
        if rng.random() < 0.3:
            calls = [call(rng.choice(["get_weather", "add"])) for _ in range(rng.randrange(1, 3))]
            said = rng.choice(["", None, "Let me see."])
            messages.append({"role": "assistant", "content": said, "tool_calls": calls})
            if rng.random() < 0.15:
                del messages[-1]["content"]
            for made in calls:
                result = rng.choice([rng.choice(texts), 22.5, {"content": 3}, {"temp": 1e-7, "ok": True},
                                     [1, "é", None]])
                answer = {"role": rng.choice(["tool", "tool", "tool", "tool_results"]), "content": result}
                if "id" in made and rng.random() < 0.95:
                    answer["tool_call_id"] = made["id"]
                messages.append(answer)
        messages.append({"role": "assistant", "content": content()})
    fault = rng.random()
    if fault < 0.06:
        again = {"role": rng.choice(["user", "assistant"]), "content": "again"}
        messages.insert(rng.randrange(len(messages) + 1), again)
    elif fault < 0.1:
        messages.append({"role": rng.choice(["system", "developer", "critic"]), "content": "late"})
    request = {"messages": messages, "add_generation_prompt": rng.random() < 0.5}
    if rng.random() < 0.4:
        weather = {"name": "get_weather", "description": 'Now, "quoted" <b> Ω\n', "strict": True, "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
        add = {"name": "add", "description": "", "parameters": {}, "return": {"type": "number"}}
        if rng.random() < 0.5:
            add["last"] = None
        request["tools"] = [{"type": "function", "function": f} for f in
                            rng.choice([[weather], [add], [weather, add], [add, weather]])]
    return request


def thinking_conversation(rng, texts):
    """What templates of thinking models look at: which turns keep their thoughts, calls in several steps, pictures."""
    def content():
        kind = rng.random()
        if kind < 0.8:
            return rng.choice(["", "\n", " "]) + rng.choice(texts) + rng.choice(["", "\n"])
        made = [{"type": "text", "text": rng.choice(texts)} for _ in range(rng.randrange(0, 3))]
        if kind < 0.9:
            made.insert(rng.randrange(len(made) + 1), rng.choice([
                {"type": "image"}, {"type": "image_url", "image_url": {"url": "a.png"}}, {"image": "b"},
                {"type": "video"}, {"video": "c"}, {"type": "audio"}]))
        return made

    def thought(message):
        kind = rng.random()
        if kind < 0.3:
            message["reasoning_content"] = rng.choice(["", "\n", " "]) + rng.choice(texts)
        elif kind < 0.5 and isinstance(message.get("content"), str):
            message["content"] = rng.choice(["<think>\n", "", "<think>"]) + rng.choice(texts) + rng.choice(
                ["\n</think>\n\n", "</think>", "\n\n</think>\n"]) + message["content"]
        return message

    def call():
        values = ["text", "two\nlines", 3, 2.5, True, None, [1, "é"], {"a": {"b": []}}, "", "7"]
        arguments = {name: rng.choice(values) for name in rng.sample(["city", "n", "x", "é"], rng.randrange(0, 4))}
        function = {"name": rng.choice(["get_weather", "add"])}
        kind = rng.random()
        if kind < 0.8:
            function["arguments"] = arguments
        elif kind < 0.9:
            function["arguments"] = rng.choice(["", json.dumps(arguments)])
        return {"type": "function", "function": function} if rng.random() < 0.8 else function

    messages = [{"role": "system", "content": content()}] if rng.random() < 0.6 else []
    for turn in range(rng.randrange(1, 4)):
        said = content()
        if rng.random() < 0.1:
            said = "<tool_response>\n" + rng.choice(texts) + "\n</tool_response>"
        messages.append({"role": "user", "content": said})
        for _ in range(rng.choice([0, 0, 1, 2])):
            calls = [call() for _ in range(rng.randrange(1, 3))]
            messages.append(thought({"role": "assistant", "content": rng.choice(["", None, "Let me see.", "\n"]),
                                     "tool_calls": calls}))
            messages += [{"role": "tool", "content": content()} for _ in calls]
        if rng.random() < 0.8:
            messages.append(thought({"role": "assistant", "content": content()}))
    if rng.random() < 0.1:
        messages.insert(rng.randrange(len(messages) + 1), {"role": rng.choice(["system", "developer", "tool"]), "content": "late"})
    request = {"messages": messages, "add_generation_prompt": rng.random() < 0.6}
    if rng.random() < 0.4:
        request["tools"] = [{"type": "function", "function": {"name": name, "description": 'Now, "quoted" <b> Ω', "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}}}} for name in rng.choice([["add"], ["get_weather", "add"]])]
    variables = {name: rng.random() < 0.5 for name in ["enable_thinking", "preserve_thinking", "add_vision_id"] if rng.random() < 0.4}
    if rng.random() < 0.3:
        variables["reasoning_effort"] = rng.choice(["xhigh", "medium", "low", "none"])
    if variables:
        request["vars"] = variables
    return request
