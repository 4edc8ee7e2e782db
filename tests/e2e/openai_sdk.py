# SPDX-License-Identifier: Apache-2.0
"""The official openai package against a server: chats, streams, tools, logprobs, n, penalties, errors, many at once.

usage: openai_sdk.py STRATA MODEL
"""
import asyncio
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import httpx
import openai
from openai_serving import KEY, READER, serving
from wire import Wire, unpack, wait_until

CALL = {"name": "weather", "arguments": {"city": "Paris"}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
PAGE = 64  # positions
HELLO = [{"role": "user", "content": "What is 3 plus 4?"}]


def train(strata, model, data, out, *options):
    subprocess.run([strata, "train", model, "--data", data, "--out", out, "--batch-tokens", "512", *options], check=True,
                   capture_output=True)
    return out


def train_both(strata, model, folder):
    """A model that answers everything with a call of a tool, and an adapter."""
    text = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
    data = folder / "calls.jsonl"
    with open(data, "w") as out:
        for city in ("Paris", "Rome", "Oslo", "Lima"):
            messages = [{"role": "user", "content": f"The weather in {city}?"}, {"role": "assistant", "content": text}]
            out.write(json.dumps({"messages": messages, "tools": [TOOL]}) + "\n")
    caller = train(strata, model, data, folder / "caller", "--method", "full", "--epochs", "50", "--lr", "3e-3")
    return caller, train(strata, model, data, folder / "tuned", "--epochs", "1")


def chat(client, messages=HELLO, model="tiny", **more):
    return client.chat.completions.create(model=model, messages=messages, **more)


def streamed(chunks):
    """Of a stream: texts of its choices, their reasons, and the last chunk."""
    texts, reasons, last = {}, {}, None
    for chunk in chunks:
        last = chunk
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, last


def said_by(strata, model, *options):
    """What strata chat answers."""
    done = subprocess.run([strata, "chat", model, "--prompt", HELLO[0]["content"], *options], check=True,
                          capture_output=True, text=True)
    return done.stdout.removesuffix("\n")


def check_chats(client, strata, model):
    greedy = chat(client, max_tokens=24)
    text = greedy.choices[0].message.content
    assert greedy.object == "chat.completion" and greedy.model == "tiny" and greedy.system_fingerprint.startswith("fp_")
    assert greedy.usage.total_tokens == greedy.usage.prompt_tokens + greedy.usage.completion_tokens
    assert said_by(strata, model, "--max-tokens", "24") == text
    for more in ({"temperature": 1.0, "seed": 2 ** 63 + 5}, {"temperature": 0.7, "seed": 6, "top_p": 0.9},
                 {"temperature": 1.3, "seed": 7, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2},
                 {"temperature": 1.0, "seed": 8, "presence_penalty": 1.5, "frequency_penalty": -0.5}):
        extra = {name: more[name] for name in ("top_k", "min_p", "repetition_penalty") if name in more}
        known = {name: value for name, value in more.items() if name not in extra}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
        want = said_by(strata, model, "--max-tokens", "24", *options)
        got = chat(client, max_tokens=24, extra_body=extra, **known).choices[0].message.content
        assert got == want, (got, want, more)
    for more in ({"temperature": 0}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.7, "seed": 6, "top_p": 0.9}):
        whole = chat(client, max_tokens=24, n=3, stop=["9"], **more)
        texts, reasons, last = streamed(chat(client, max_tokens=24, n=3, stop=["9"], stream=True,
                                             stream_options={"include_usage": True}, **more))
        for choice in whole.choices:
            assert texts[choice.index] == choice.message.content, (texts, choice)
            assert reasons[choice.index] == choice.finish_reason
            assert "9" not in choice.message.content
        assert last.usage == whole.usage, (last.usage, whole.usage)
        again = chat(client, max_tokens=24, n=3, stop=["9"], **more)
        assert [c.message for c in again.choices] == [c.message for c in whole.choices]
    assert len({c.message.content for c in chat(client, n=8, temperature=2.0, seed=1, max_tokens=24).choices}) > 1
    assert chat(client, model="tuned", max_tokens=4).model == "tuned"
    parts = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert chat(client, parts, max_tokens=2).choices[0].finish_reason in ("stop", "length")


def check_logprobs(client, wire):
    """To the bit what the Tinker protocol says of the same sample."""
    prompt = [5, 9, 17, 33, 65, 12, 40, 7]
    sampler = wire.sampler(wire.session(), 0, base_model="tiny")
    for seq, temperature in enumerate((0.0, 1.0, 0.6)):
        got = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, seed=11, temperature=temperature,
                                        top_p=0.9, logprobs=3, n=2, echo=True, extra_body={"top_k": 40})
        want = wire.sampled(sampler, seq, prompt, max_tokens=12, count=2, prompt_logprobs=True, topk_prompt_logprobs=3,
                            topk_sample_logprobs=3,
                            params={"seed": 11, "temperature": temperature, "top_p": 0.9, "top_k": 40})
        of_prompt = unpack("f", want.prompt_logprobs)
        for choice, sequence in zip(got.choices, want.sequences):
            logprobs = choice.logprobs
            assert logprobs.token_logprobs[0] is None
            assert logprobs.token_logprobs[1:len(prompt)] == of_prompt[1:]
            assert logprobs.token_logprobs[len(prompt):] == unpack("f", sequence.logprobs)
            top = unpack("f", sequence.topk_sampled_logprobs.logprobs)
            for i, told in enumerate(logprobs.top_logprobs[len(prompt):]):
                assert set(top[3 * i:3 * i + 3]) <= set(told.values()), (told, top[3 * i:3 * i + 3])
        chunks = list(client.completions.create(model="tiny", prompt=prompt, max_tokens=12, seed=11, top_p=0.9,
                                                temperature=temperature, logprobs=3, stream=True, extra_body={"top_k": 40}))
        told = [value for chunk in chunks for value in chunk.choices[0].logprobs.token_logprobs]
        assert told == unpack("f", want.sequences[0].logprobs), (told, temperature)
        chunks = list(client.completions.create(model="tiny", prompt=prompt, max_tokens=12, seed=11, top_p=0.9, echo=True, n=2,
                                                temperature=temperature, logprobs=3, stream=True, extra_body={"top_k": 40}))
        for choice in got.choices:
            mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
            assert "".join(one.text for one in mine) == choice.text
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                told = [value for one in mine if one.logprobs for value in getattr(one.logprobs, name)]
                assert told == getattr(choice.logprobs, name), (name, temperature)
    whole = chat(client, logprobs=True, top_logprobs=2, max_tokens=8, temperature=1.0, seed=3).choices[0]
    told = [entry for chunk in chat(client, logprobs=True, top_logprobs=2, max_tokens=8, temperature=1.0, seed=3, stream=True)
            if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert told == whole.logprobs.content and len(told[0].top_logprobs) == 2
    assert b"".join(bytes(entry.bytes) for entry in told).decode().startswith(whole.message.content)


def check_options(client):
    plain = client.completions.create(model="tiny", prompt="a b c d e", max_tokens=40, temperature=0)
    assert plain.usage.completion_tokens <= 40
    ids = client.completions.create(model="tiny", prompt=[[5, 6], [7]], max_tokens=0, echo=True, logprobs=0)
    assert [len(c.logprobs.tokens) for c in ids.choices] == [2, 1] and ids.usage.completion_tokens == 0
    first = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=1, temperature=0, logprobs=1)
    forced = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=3, temperature=0, logit_bias={"77": 100})
    other = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=3, temperature=0, logit_bias={"78": 100})
    assert forced.choices[0].text != other.choices[0].text
    same = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=1, temperature=0, logprobs=1,
                                     presence_penalty=0, frequency_penalty=0,
                                     extra_body={"min_p": 0, "repetition_penalty": 1, "top_k": -1})
    assert same.choices[0].logprobs == first.choices[0].logprobs
    repeated = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=30, temperature=0,
                                         logit_bias={"77": 30}, stop=[])
    varied = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=30, temperature=0,
                                       logit_bias={"77": 30}, presence_penalty=2, frequency_penalty=2)
    assert len(set(repeated.choices[0].text)) < len(set(varied.choices[0].text)), (repeated, varied)


def check_turns(client, model):
    """A chat of 16 turns reads its new tokens and a page a turn, where the rendered turns begin with what was sampled."""
    think = json.loads(pathlib.Path(model, "tokenizer.json").read_text())["added_tokens"]
    unthinking = {str(next(token["id"] for token in think if token["content"] == "<think>")): -100}
    messages, told, held, ended = [{"role": "system", "content": "You answer in short sentences. " * 8}], 0, 0, False
    question = {"role": "user", "content": "And which day comes then?"}
    alone = chat(client, [question], max_tokens=1).usage.prompt_tokens
    for turn in range(16):
        messages.append(question)
        answer = chat(client, messages, temperature=0, max_tokens=24, logit_bias=unthinking)
        usage, choice = answer.usage, answer.choices[0]
        new = usage.prompt_tokens - told
        # An answer without its end, or whose text has other tokens than it was sampled with, is not what it begins with.
        if ended and new <= alone + 1:
            held += 1
            assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens <= new + PAGE, (turn, usage)
        told, ended = usage.total_tokens, choice.finish_reason == "stop"
        messages.append({"role": "assistant", "content": choice.message.content})
    assert held >= 8, held
    print(f"openai_sdk: {held} of 15 turns began with what was sampled, and read no more than a page of it", flush=True)


def check_tools(client):
    question = [{"role": "user", "content": "The weather in Paris?"}]
    whole = chat(client, question, "caller", tools=[TOOL], temperature=0, max_tokens=60).choices[0]
    assert whole.finish_reason == "tool_calls", whole
    call = whole.message.tool_calls[0]
    assert call.function.name == "weather" and "city" in json.loads(call.function.arguments), call
    calls = [c for chunk in chat(client, question, "caller", tools=[TOOL], temperature=0, max_tokens=60, stream=True)
             for c in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].index == 0 and calls[0].id and calls[0].function.name == call.function.name, calls
    assert calls[0].function.arguments == "" and len(calls) > 2, calls
    assert all(c.index == 0 and c.id is None and c.function.name is None for c in calls[1:]), calls
    assert "".join(c.function.arguments for c in calls) == call.function.arguments, calls
    text = chat(client, question, "caller", tools=[TOOL], tool_choice="none", temperature=0, max_tokens=60).choices[0]
    assert not text.message.tool_calls
    answered = question + [whole.message.model_dump(exclude_none=True),
                           {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert chat(client, answered, "caller", tools=[TOOL], max_tokens=4).usage.prompt_tokens > 0


def refused(kind, call, *words, **fields):
    try:
        call()
    except kind as error:
        body = error.body
        assert all(word in error.message for word in words), (error.message, words)
        assert all(body[name] == value for name, value in fields.items()), (body, fields)
        return
    raise AssertionError(f"accepted, and not {kind.__name__} {words}")


def check_errors(client, url):
    refused(openai.NotFoundError, lambda: chat(client, model="gpt-4o"), "gpt-4o", code="model_not_found", param="model")
    refused(openai.AuthenticationError, lambda: chat(openai.OpenAI(base_url=url + "/v1", api_key="no", max_retries=0)),
            code="invalid_api_key")
    reader = openai.OpenAI(base_url=url + "/v1", api_key=READER, max_retries=0)
    assert [m.id for m in reader.models.list()]
    refused(openai.PermissionDeniedError, lambda: chat(reader), "read-only")
    for more, param in (({"temperature": 3e6, "n": 0}, "n"), ({"response_format": {"type": "xml"}}, "response_format"),
                        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice"), ({"max_tokens": 10 ** 6}, "messages"),
                        ({"logit_bias": {"5": 101}}, "logit_bias.5"), ({"extra_body": {"best": 1}}, "best")):
        refused(openai.BadRequestError, lambda more=more: chat(client, **more), param=param)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
    refused(openai.BadRequestError, lambda: chat(client, image), "image_url", param="messages[0].content[0].type")


def check_checkpoints(client, wire):
    first, second = wire.session(), wire.session()
    paths = []
    for session in (first, second):
        model = wire.model(session, seed=3)
        paths.append(model.save("it", "save_weights_for_sampler")["path"])
    texts = {chat(client, model=path, temperature=0, max_tokens=8).choices[0].message.content for path in paths}
    assert len(texts) == 1, texts  # B is zero: both are the base
    assert client.models.retrieve(paths[0]).id == paths[0]
    refused(openai.NotFoundError, lambda: chat(client, model=paths[0] + "x"), code="model_not_found")


async def many(url, count):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0, timeout=120)

    async def one(seed):
        text = ""
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, seed=seed, temperature=2.0,
                                                      max_tokens=24, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text
    texts = await asyncio.gather(*(one(seed) for seed in range(count)))
    alone = await client.chat.completions.create(model="tiny", messages=HELLO, seed=count - 1, temperature=2.0, max_tokens=24)
    assert texts[-1] == alone.choices[0].message.content
    assert len(set(texts)) > count // 4
    await client.close()


def check_hang_up(client, metrics):
    def running():
        return int(float(re.search(r"^strata_running_samples (\S+)", httpx.get(metrics).text, re.M)[1]))
    stream = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=7000, temperature=1.0, n=8, stream=True,
                                       logit_bias={"4070": -100, "4072": -100})
    next(iter(stream))
    assert running() == 8
    stream.close()
    assert wait_until(lambda: running() == 0, 10), "the rows of a client that is gone"
    impatient = openai.OpenAI(base_url=client.base_url, api_key=KEY, max_retries=0, timeout=1)
    try:
        impatient.completions.create(model="tiny", prompt=[5, 6], max_tokens=7000, temperature=1.0, n=8,
                                     logit_bias={"4070": -100, "4072": -100})
        raise AssertionError("7000 tokens in a second")
    except openai.APITimeoutError:
        assert wait_until(lambda: running() == 0, 10), "the rows of a whole answer whose client is gone"


def main():
    strata, model = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        caller, tuned = train_both(strata, model, folder)
        with serving(strata, folder, "--model", f"tiny={model}", "--alias", "org/tiny=tiny",
                     "--model", f"caller={caller}", "--adapter", f"tuned={tuned}") as (url, metrics):
            client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
            wire = Wire(url, KEY)
            names = [m.id for m in client.models.list()]
            assert sorted(names) == ["caller", "org/tiny", "tiny", "tuned"], names
            assert client.models.retrieve("org/tiny").id == "org/tiny"
            check_chats(client, strata, model)
            check_logprobs(client, wire)
            check_options(client)
            check_turns(client, model)
            check_tools(client)
            check_errors(client, url)
            check_checkpoints(client, wire)
            asyncio.run(many(url, 64))
            check_hang_up(client, metrics)
    print(f"openai {openai.__version__}: chats, streams, logprobs, options, turns, tools, errors, checkpoints, 64 streams, a hang-up")


if __name__ == "__main__":
    main()
