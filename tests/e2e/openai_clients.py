# SPDX-License-Identifier: Apache-2.0
"""Further clients of OpenAI's API, unmodified: litellm and the command line llm; and what has answers fit a schema: openai, LangChain
and the Agents SDK.

usage: openai_clients.py STRATA MODEL
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import typing

import openai_serving

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request of its own
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
import agents  # noqa: E402
import langchain_openai  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402

HELLO = [{"role": "user", "content": "What is 3 plus 4?"}]


def check_litellm(url, key):
    model = {"model": "openai/tiny", "api_base": url + "/v1", "api_key": key, "num_retries": 0}
    whole = litellm.completion(messages=HELLO, max_tokens=16, temperature=0, **model)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(
        messages=HELLO, max_tokens=16, temperature=0, stream=True, stream_options={"include_usage": True}, **model))
    assert text == whole.choices[0].message.content and whole.usage.completion_tokens > 0, (text, whole)
    sampled = litellm.completion(messages=HELLO, max_tokens=16, seed=3, temperature=1.0, top_p=0.9, n=2, logprobs=True,
                                 top_logprobs=2, presence_penalty=0.5, **model)
    assert len(sampled.choices) == 2 and sampled.choices[0].logprobs.content
    old = litellm.text_completion(prompt="a b c", max_tokens=4, **{**model, "model": "text-completion-openai/tiny"})
    assert old.usage.completion_tokens <= 4
    try:
        litellm.completion(messages=HELLO, **{**model, "model": "openai/none"})
        raise AssertionError("an unknown model was accepted")
    except litellm.NotFoundError as error:
        assert "does not exist" in str(error), error
    return text


def check_llm(url, key, text, folder):
    home = folder / "llm"
    home.mkdir()
    (home / "extra-openai-models.yaml").write_text(json.dumps(
        [{"model_id": "served", "model_name": "tiny", "api_base": url + "/v1", "api_key_name": "served", "supports_tools": True}]))
    (home / "keys.json").write_text(json.dumps({"served": key}))
    run = [pathlib.Path(sys.executable).parent / "llm", "-m", "served", "-o", "temperature", "0", "-o", "max_tokens", "16"]
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    for more in ([], ["--no-stream"]):
        said = subprocess.run([*run, *more, HELLO[0]["content"]], env=environment, check=True, capture_output=True, text=True)
        assert said.stdout.strip() == text.strip(), (said.stdout, text)


class Person(pydantic.BaseModel):
    name: typing.Literal["Ada", "Bob"]
    age: int = pydantic.Field(ge=0, le=130)


class Weather(pydantic.BaseModel):
    """The weather of a city."""
    city: typing.Literal["Oslo", "Rome"]


def check_openai(url, key):
    client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
    parsed = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Person, max_tokens=100, seed=1)
    assert isinstance(parsed.choices[0].message.parsed, Person), parsed
    tool = openai.pydantic_function_tool(Weather)
    called = client.chat.completions.parse(model="tiny", messages=HELLO, tools=[tool], tool_choice="required", parallel_tool_calls=False,
                                           max_tokens=200, seed=1)
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Weather), called
    assert called.choices[0].finish_reason == "tool_calls", called
    with client.chat.completions.stream(model="tiny", messages=HELLO, response_format=Person, max_tokens=100, seed=2) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)
    chosen = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20,
                                            extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert chosen.choices[0].message.content in ("yes", "no"), chosen
    try:
        client.chat.completions.create(model="tiny", messages=HELLO, response_format={"type": "json_schema", "json_schema": {
            "name": "n", "strict": True, "schema": {"type": "object"}}})
        raise AssertionError("a schema that is not strict was accepted")
    except openai.BadRequestError as error:
        assert error.param == "response_format.json_schema.schema", error


def check_langchain(url, key):
    model = langchain_openai.ChatOpenAI(model="tiny", base_url=url + "/v1", api_key=key, max_retries=0, max_tokens=200, seed=3)
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Person, method=method).invoke(HELLO[0]["content"]), Person), method
    said = model.bind_tools([Weather], tool_choice="Weather", strict=True).invoke(HELLO[0]["content"])
    assert said.tool_calls[0]["name"] == "Weather" and Weather(**said.tool_calls[0]["args"]), said


def check_agents(url, key):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
    asked = []

    @agents.function_tool
    def weather(city: typing.Literal["Oslo", "Rome"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sunny"

    model = agents.OpenAIChatCompletionsModel(model="tiny", openai_client=client)
    settings = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    caller = agents.Agent(name="a", model=model, tools=[weather], model_settings=settings, tool_use_behavior="stop_on_first_tool")
    said = agents.Runner.run_sync(caller, HELLO[0]["content"])
    assert said.final_output == "sunny" and set(asked) <= {"Oslo", "Rome"}, (said, asked)
    teller = agents.Agent(name="b", model=model, output_type=Person, model_settings=agents.ModelSettings(max_tokens=200))
    assert isinstance(agents.Runner.run_sync(teller, HELLO[0]["content"]).final_output, Person)


def main():
    strata, model = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with openai_serving.serving(strata, folder, "--model", f"tiny={model}") as (url, _):
            text = check_litellm(url, openai_serving.KEY)
            check_llm(url, openai_serving.KEY, text, folder)
            for check in (check_openai, check_langchain, check_agents):
                check(url, openai_serving.KEY)
    print("litellm and llm: chats, streams, logprobs, completions, errors; openai, LangChain and the Agents SDK: schemas, calls of tools")


if __name__ == "__main__":
    main()
