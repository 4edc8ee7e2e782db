# SPDX-License-Identifier: Apache-2.0
"""Answers of strata serve to schemas of many kinds (response_format json_schema), held against the jsonschema package.

usage: python3 tests/e2e/served_schemas.py PROGRAM MODEL [--count N] [--seed N]

--count schemas (300) are composed as tests/e2e/json_schemas.py has them. Every fifth has a keyword somewhere that no grammar is made of:
with "strict": true it is refused by its path, without it the answer's warnings name that path. Every other answer that ended by itself
must be JSON that jsonschema finds valid.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import urllib.error
import urllib.request

import jsonschema
import openai_serving
from json_schemas import Composer

UNKNOWN = [("not", {"const": 7}), ("if", {}), ("contentEncoding", "base64"), ("dependentRequired", {"a": ["b"]}), ("contains", {}),
           ("uniqueItems", True), ("unevaluatedItems", False), ("x-own", 1)]


def ask(url, schema, strict, seed):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "An answer as JSON:"}], "max_tokens": 300, "temperature": 1, "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}}}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {openai_serving.KEY}"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def with_unknown_keyword(composer):
    """A schema that keeps OpenAI's rules of strict ones but for one keyword, and the path of that."""
    depth = composer.random.randint(0, 3)
    keyword, value = composer.random.choice(UNKNOWN)
    schema = {**composer.number(), keyword: value}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "maxItems": 2}
    path = "#/properties/a" + "/items" * depth + "/" + keyword
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}, path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ended = cut = refused = 0
    faults = []
    with tempfile.TemporaryDirectory() as folder, openai_serving.serving(
            str(pathlib.Path(options.program).resolve()), pathlib.Path(folder), "--model",
            f"tiny={pathlib.Path(options.model).resolve()}") as (url, _):
        for number in range(options.count):
            composer = Composer(f"{options.seed}/{number}")
            if number % 5 == 4:
                schema, path = with_unknown_keyword(composer)
                status, said = ask(url, schema, True, number)
                loose, answer = ask(url, schema, False, number)
                is_named = status == 400 and f": {path}: " in said["error"]["message"] and (
                    loose == 200 and [path for warning in answer["warnings"] if f": {path}: " in warning])
                refused += bool(is_named)
                if not is_named:
                    faults.append(f"{json.dumps(schema)}\n  {path}: {status} {said}, {loose} {answer}")
                continue
            schema = composer.recursive() if number % 10 == 0 else composer.schema(number % 4)
            jsonschema.Draft202012Validator.check_schema(schema)
            status, said = ask(url, schema, False, number)
            if status != 200 or "warnings" in said:
                faults.append(f"{json.dumps(schema)}\n  {status} {said}")
                continue
            choice = said["choices"][0]
            if choice["finish_reason"] != "stop":
                cut += 1
                continue
            ended += 1
            try:
                jsonschema.validate(json.loads(choice["message"]["content"]), schema, cls=jsonschema.Draft202012Validator)
            except (ValueError, jsonschema.ValidationError) as fault:
                faults.append(f"{json.dumps(schema)}\n  {choice['message']['content']!r}\n  {str(fault).splitlines()[0]}")
    for fault in faults:
        print(fault)
    print(f"served schemas: {options.count} schemas, {ended} answers ended and are valid but for {len(faults)} faults; {cut} were cut off; "
          f"{refused} refused by the path of a keyword")
    sys.exit(1 if faults or ended < cut else 0)


if __name__ == "__main__":
    main()
