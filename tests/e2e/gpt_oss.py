# SPDX-License-Identifier: Apache-2.0
"""gpt-oss from random weights to a served model: data with reasoning and calls, training of all its weights and of an adapter,
experts in MXFP4, chat, the openai package against a server (a call, its answer, reasoning, streamed), merge, and a GGUF file that
says the same.

usage: gpt_oss.py STRATA MODEL FOLDER, of a tiny gpt-oss that tools/run/tiny_gpt_oss.sh made. In FOLDER it leaves mxfp4, a tuned
       model, and an adapter of it, which gpt_oss_peft.py takes.
"""
import json
import pathlib
import subprocess
import sys

import openai
from openai_serving import KEY, serving

TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
LOOKS, SAYS, GREETS = "I look it up.", "The tool says it.", "A greeting."
SKIES = {"Paris": "rain", "Rome": "sun"}


def run(strata, *arguments):
    done = subprocess.run([strata, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done


def conversations(thinking="thinking"):
    """`thinking`: the key that a template reads thoughts under."""
    for city, sky in SKIES.items():
        ask = {"role": "user", "content": f"The weather in {city}?"}
        call = {"role": "assistant", thinking: LOOKS, "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": {"city": city}}}]}
        yield {"tools": [TOOL], "messages": [ask, call]}
        yield {"tools": [TOOL], "messages": [
            ask, call, {"role": "tool", "tool_call_id": "call_0", "content": json.dumps({"sky": sky})},
            {"role": "assistant", thinking: SAYS, "content": f"There is {sky} in {city}."}]}
        yield {"messages": [{"role": "user", "content": f"Say hello to {city}."},
                            {"role": "assistant", thinking: GREETS, "content": f"Hello, {city}!"}]}


def write_data(path, thinking="thinking"):
    path.write_text("".join(json.dumps(row) + "\n" for row in conversations(thinking)))
    return path


def check_data(strata, model, data):
    shown = run(strata, "data", data, "--model", model, "--show", 6).stdout
    assert f"assistant[[<|channel|>analysis<|message|>{LOOKS}<|end|><|start|>assistant to=functions.weather" in shown, shown
    assert "<|channel|>final<|message|>Hello, Paris!<|return|>]]" in shown, shown


def pack(strata, model, out):
    """Its experts in 4 bits, as gpt-oss is published."""
    run(strata, "convert", model, "--type", "mxfp4", "--out", out)
    assert json.loads((out / "config.json").read_text())["quantization_config"]["quant_method"] == "mxfp4"
    assert "e2m1" in run(strata, "inspect", out).stdout


def check_chat(strata, model, *options):
    done = run(strata, "chat", model, *options, "--prompt", "Say hello to Rome.", "--temperature", 0)
    assert done.stdout == "Hello, Rome!\n", done.stdout
    assert f"[thinks: {GREETS}]\n" in done.stderr, done.stderr


def joined(stream):
    """Of a stream: its reasoning, content, call and reason to end."""
    reasoning = content = name = arguments = ""
    reason = None
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
            for call in delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            reason = choice.finish_reason or reason
    return reasoning, content, name, arguments, reason


def check_calls(client, model, keeps_thoughts=False):
    """`keeps_thoughts`: the template renders those of the call that is answered."""
    ask = [{"role": "user", "content": "The weather in Paris?"}]
    options = {"model": model, "tools": [TOOL], "temperature": 0, "max_tokens": 100}
    answer = client.chat.completions.create(messages=ask, **options).choices[0]
    message = answer.message
    assert answer.finish_reason == "tool_calls" and len(message.tool_calls) == 1, answer
    call = message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Paris"}, call
    assert message.reasoning_content == LOOKS and not message.content, message
    streamed = joined(client.chat.completions.create(messages=ask, stream=True, **options))
    assert streamed == (LOOKS, "", "weather", call.function.arguments, "tool_calls"), streamed
    # As clients send it, and as the template renders what was trained.
    turns = [*ask, message.model_dump(exclude_none=True, exclude=None if keeps_thoughts else {"reasoning_content"}),
             {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"sky": "rain"})}]
    final = client.chat.completions.create(messages=turns, **options).choices[0]
    assert final.message.content == "There is rain in Paris." and final.message.reasoning_content == SAYS, final
    assert final.finish_reason == "stop"
    streamed = joined(client.chat.completions.create(messages=turns, stream=True, **options))
    assert streamed == (SAYS, "There is rain in Paris.", "", "", "stop"), streamed


def main(strata, model, folder):
    folder = pathlib.Path(folder)
    folder.mkdir()
    data = write_data(folder / "data.jsonl")
    check_data(strata, model, data)
    learns = ["--data", data, "--eval-fraction", 0, "--batch-size", 2]
    tuned, packed, adapter = folder / "tuned", folder / "mxfp4", folder / "adapter"
    run(strata, "train", model, *learns, "--method", "full", "--lr", "5e-3", "--epochs", 80, "--out", tuned)
    check_chat(strata, tuned)
    with serving(strata, folder, "--model", f"oss={tuned}") as (url, _):
        check_calls(openai.OpenAI(base_url=url + "/v1", api_key=KEY), "oss")
    # Its experts in 4 bits, and over them an adapter of all linear layers, of experts as target_parameters.
    pack(strata, tuned, packed)
    run(strata, "train", packed, *learns, "--rank", 8, "--lr", "1e-3", "--epochs", 10, "--out", adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert any("experts" in name for name in config["target_parameters"]), config
    check_chat(strata, packed, "--adapter", adapter)
    merged = folder / "merged"
    run(strata, "merge", "--model", packed, "--adapter", adapter, "--out", merged)
    check_chat(strata, merged)
    for kind in ("keep", "mxfp4"):
        run(strata, "convert", merged, "--to", "gguf", "--type", kind, "--out", folder / f"{kind}.gguf")
        check_chat(strata, folder / f"{kind}.gguf")
    print("gpt-oss: data, train, chat, serve, MXFP4, adapter, merge and GGUF")


if __name__ == "__main__":
    main(*sys.argv[1:])
