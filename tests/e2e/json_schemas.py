# SPDX-License-Identifier: Apache-2.0
"""Answers of strata generate to schemas of many kinds, at temperature 1, held against the jsonschema package.

usage: python3 tests/e2e/json_schemas.py PROGRAM MODEL [--answers N] [--count N] [--seed N]

--count schemas (100) are composed at random from the kinds that benchmarks of structured answers have: flat and nested
objects, arrays and tuples, numbers and strings with limits, enums, unions, references and recursion. Each is asked for
--answers answers (2). Every answer that ended by itself must be JSON that jsonschema finds valid.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import jsonschema

NAMES = ["id", "name", "email", "count", "price", "tags", "kind", "when", "ok", "next", "a b", "ümlaut", 'q"uote']
FORMATS = ["date", "date-time", "time", "ipv4", "uuid", "hostname"]
PATTERNS = ["^[A-Z]{2}-[0-9]{3,5}$", "^(red|green|blue)$", "^[a-z]+@[a-z]+\\.org$", "^\\d{4}-\\d{2}$", "^[^\"]{1,4}$", "^.{2,6}$"]


class Composer:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *makers):
        return self.random.choice(makers)()

    def bounds(self, low, high, lower, upper):
        """A lower bound, an upper one, both or none."""
        first, last = sorted((self.random.randint(low, high), self.random.randint(low, high)))
        return {key: value for key, value in ((lower, first), (upper, last)) if self.random.random() < 0.6}

    def string(self):
        kind = self.random.random()
        if kind < 0.2:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        if kind < 0.4:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        return {"type": "string", **self.bounds(0, 12, "minLength", "maxLength")}

    def number(self):
        lower = self.random.choice(["minimum", "exclusiveMinimum"])
        if self.random.random() < 0.5:
            bounds = self.bounds(-1000, 1000, lower, "maximum")
            if bounds.get("exclusiveMinimum") == bounds.get("maximum"):
                bounds = {}
            return {"type": "integer", **bounds}
        return {"type": "number", **{key: value + 0.5 for key, value in self.bounds(-40, 40, "minimum", "maximum").items()}}

    def literal(self):
        values = self.random.sample(["a", "b/c", 'd"e', "ß", 1, 2.5, -3, True, None, [], {"x": 1}], self.random.randint(1, 5))
        return {"const": values[0]} if len(values) == 1 else {"enum": values}

    def plain(self):
        return self.pick(self.string, self.number, self.literal, lambda: {"type": "boolean"}, lambda: {"type": ["integer", "null"]})

    def array(self, depth):
        out = {"type": "array", "items": self.schema(depth - 1), **self.bounds(0, 4, "minItems", "maxItems")}
        if self.random.random() < 0.25:
            first = [self.plain() for _ in range(self.random.randint(1, 3))]
            out = {"type": "array", "prefixItems": first, "items": False, "minItems": self.random.randint(0, len(first))}
        return out

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(1, 5))
        properties = {name: self.schema(depth - 1) for name in names}
        required = [name for name in names if self.random.random() < 0.6]
        out = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            out["required"] = required
        kind = self.random.random()
        if kind < 0.15:
            out["additionalProperties"] = self.plain()
        elif kind < 0.25:
            out = {"type": "object", "patternProperties": {"^x_[a-z]{1,3}$": self.plain()}, "additionalProperties": False}
        elif kind < 0.35:
            out = {"type": "object", "additionalProperties": self.plain(), **self.bounds(0, 1, "minProperties", "maxProperties")}
        elif kind < 0.5:
            out["maxProperties"] = max(len(required), 1)
        return out

    def union(self, depth):
        if self.random.random() < 0.5:
            return {"anyOf": [self.schema(depth - 1), {"type": "null"}, self.plain()]}
        branches = [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.schema(depth - 1)},
                     "required": ["kind", "value"], "additionalProperties": False} for kind in ("one", "two")]
        return {"oneOf": branches}

    def schema(self, depth):
        if depth <= 0:
            return self.plain()
        return self.pick(self.plain, lambda: self.array(depth), lambda: self.object(depth), lambda: self.object(depth),
                         lambda: self.union(depth), lambda: {"allOf": [self.schema(depth - 1)], "description": "one"})

    def recursive(self):
        node = {"type": "object", "properties": {"value": self.plain(), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                                                 "all": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1}},
                "required": ["value", "next"], "additionalProperties": False}
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/node", "$defs": {"node": node}}


def ask(program, model, file, seed, max_tokens):
    words = [program, "generate", model, "--json-schema", file, "--prompt", "An answer as JSON:", "--temperature", "1", "--top-p", "1",
             "--top-k", "0", "--seed", str(seed), "--max-tokens", str(max_tokens), "--threads", "1", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stderr}\n{pathlib.Path(file).read_text()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--answers", type=int, default=2)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=300)
    options = parser.parse_args()
    ended = cut = 0
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.count):
            composer = Composer(f"{options.seed}/{number}")
            schema = composer.recursive() if number % 10 == 0 else composer.schema(number % 4)
            jsonschema.Draft202012Validator.check_schema(schema)
            file = str(pathlib.Path(folder) / "schema.json")
            pathlib.Path(file).write_text(json.dumps(schema), encoding="utf-8")
            for answer in range(options.answers):
                said = ask(options.program, options.model, file, 1000 * number + answer, options.max_tokens)
                if said["stop_reason"] != "eos":
                    cut += 1
                    continue
                ended += 1
                try:
                    jsonschema.validate(json.loads(said["text"]), schema, cls=jsonschema.Draft202012Validator)
                except (ValueError, jsonschema.ValidationError) as fault:
                    faults.append(f"{json.dumps(schema)}\n  {said['text']!r}\n  {str(fault).splitlines()[0]}")
    for fault in faults:
        print(fault)
    print(f"json schemas: {options.count} schemas, {ended} answers ended and {ended - len(faults)} of them are valid; {cut} were cut off")
    # Most end: else it would show little.
    sys.exit(1 if faults or ended < cut else 0)


if __name__ == "__main__":
    main()
