# SPDX-License-Identifier: Apache-2.0
"""Further clients of OpenAI's API, unmodified: litellm and the command line llm.

usage: openai_clients.py STRATA MODEL
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import openai_serving

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request of its own
import litellm  # noqa: E402

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


def main():
    strata, model = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with openai_serving.serving(strata, folder, "--model", f"tiny={model}") as (url, _):
            text = check_litellm(url, openai_serving.KEY)
            check_llm(url, openai_serving.KEY, text, folder)
    print("litellm and llm: chats, streams, logprobs, completions, errors")


if __name__ == "__main__":
    main()
