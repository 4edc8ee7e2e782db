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
