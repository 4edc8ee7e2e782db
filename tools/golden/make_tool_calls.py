#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/server/openai/tool_calls.json: which calls of tools vLLM's own parsers read out of answers.

usage: python tools/golden/make_tool_calls.py       needs tools/requirements/tool_calls.txt

Each case is an answer as a model of the family may write it, whole. Of reasoning there is none. Arguments are kept as
vLLM gives them; who compares them reads them as JSON.
"""
import json
import pathlib

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

OUT = pathlib.Path(__file__).parent.parent.parent / "tests/server/openai/tool_calls.json"

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"},
        "exact": {"type": "boolean"}, "tags": {"type": "array"}, "where": {"type": "object"},
    },
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
         for name in ("weather", "now", "get-it.v2")]

# The texts of objects, from easy to hard.
OBJECTS = {
    "plain": '{"city": "Paris"}',
    "empty": "{}",
    "braces in a string": '{"city": "} { ]}"}',
    "escapes": r'{"city": "q\" \\ \n \/ \u00e9 \ud83d\ude00"}',
    "an escape at the end of a string": r'{"city": "a\\"}',
    "characters of several bytes": '{"city": "Zürich 東京 😀"}',
    "nested": '{"where": {"a": [1, {"b": null}], "c": {}}, "exact": true, "share": -1.5e3}',
    "on lines": '{\n  "city": "Paris",\n  "days": 3\n}',
    "compact": '{"city":"Paris","days":3}',
    "large numbers": '{"days": 12345678901234567890, "share": 0.1}',
    "markup in a string": '{"city": "<b>a</b> & </parameter>"}',
    "one key twice": '{"days": 1, "days": 2}',
}


def json_calls(call):
    """Cases of a family whose call of a name with an object's text `call` makes."""
    cases = {f"arguments: {what}": call("weather", text) for what, text in OBJECTS.items()}
    cases["a name with signs"] = call("get-it.v2", "{}")
    cases["text without a call"] = "The weather is fine.\n"
    return cases


def object_text(name, arguments, key="arguments"):
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def cut(text, mark):
    return text[: text.index(mark) + len(mark)]


def hermes():
    def call(name, arguments):
        return f"<tool_call>\n{object_text(name, arguments)}\n</tool_call>"

    paris = call("weather", '{"city": "Paris"}')
    cases = json_calls(call)
    cases |= {
        "arguments that are cut": cut(paris, "Par"),
        "a name that is cut": cut(paris, "wea"),
        "an end mark that is missing": cut(paris, "}}"),
        "an end mark that is cut": paris[:-3],
        "two": paris + "\n" + call("now", "{}"),
        "two without a break": paris + call("now", "{}"),
        "text before": "I look.\n\n" + paris,
        "text behind": paris + "\nThat was it.",
        "text between": paris + "\nand\n" + call("now", "{}"),
        "on one line": "<tool_call>" + object_text("weather", '{"city": "Paris"}') + "</tool_call>",
        "arguments before the name": '<tool_call>\n{"arguments": {"days": 3}, "name": "weather"}\n</tool_call>',
        "a further key": '<tool_call>\n{"id": 7, "name": "now", "arguments": {}, "type": "function"}\n</tool_call>',
        "no arguments": '<tool_call>\n{"name": "now"}\n</tool_call>',
        "arguments of null": call("now", "null"),
        "arguments of a list": call("now", "[1]"),
        "arguments as a string": call("weather", r'"{\"city\": \"Paris\"}"'),
        "no name": '<tool_call>\n{"arguments": {}}\n</tool_call>',
        "an empty name": call("", "{}"),
        "no JSON": "<tool_call>\nweather in Paris\n</tool_call>",
        "a comma too many": call("weather", '{"city": "Paris",}'),
        "a brace too many": "<tool_call>\n" + object_text("now", "{}") + "}\n</tool_call>",
        "a brace too few": '<tool_call>\n{"name": "now", "arguments": {}\n</tool_call>',
        "single quotes": "<tool_call>\n{'name': 'now', 'arguments': {}}\n</tool_call>",
        "nothing between the marks": "<tool_call>\n</tool_call>",
        "an end mark alone": "text </tool_call>",
        "a begin mark that is cut": "text <tool_c",
        "a list of calls": "<tool_call>\n[" + object_text("now", "{}") + "]\n</tool_call>",
        "the second is no JSON": paris + "\n<tool_call>\nno\n</tool_call>",
        "the first is no JSON": "<tool_call>\nno\n</tool_call>\n" + paris,
        "an end mark in a string": call("weather", '{"city": "</tool_call>"}'),
    }
    return cases


def llama():
    def call(name, arguments):
        return object_text(name, arguments, "parameters")

    paris = call("weather", '{"city": "Paris"}')
    cases = json_calls(call)
    cases |= {
        "arguments that are cut": cut(paris, "Par"),
        "a name that is cut": cut(paris, "wea"),
        "two": paris + "; " + call("now", "{}"),
        "two without a space": paris + ";" + call("now", "{}"),
        "the mark before": "<|python_tag|>" + paris,
        "the mark before two": "<|python_tag|>" + paris + "; " + call("now", "{}"),
        "space before": "\n " + paris,
        "text before": "I look. " + paris,
        "text behind": paris + " That was it.",
        "the key arguments": object_text("weather", '{"city": "Paris"}'),
        "no name": '{"parameters": {}}',
        "no parameters": '{"name": "now"}',
        "another object": '{"city": "Paris"}',
        "a name of a number": '{"name": 1, "parameters": {}}',
        "a comma too many": call("weather", '{"city": "Paris",}'),
        "a brace too few": '{"name": "now", "parameters": {}',
        "the second is no JSON": paris + "; {no}",
    }
    return cases


def mistral():
    def call(name, arguments):
        return f"[TOOL_CALLS]{name}[ARGS]{arguments}"

    paris = call("weather", '{"city": "Paris"}')
    cases = json_calls(call)
    cases |= {
        "arguments that are cut": cut(paris, "Par"),
        "two": paris + call("now", "{}"),
        "text before": "I look." + paris,
        "without its second mark": '[TOOL_CALLS]weather{"city": "Paris"}',
        "no arguments": "[TOOL_CALLS]now",
    }
    return cases


def mistral_list():
    def call(name, arguments):
        return f"[TOOL_CALLS] [{object_text(name, arguments)}]"

    paris = call("weather", '{"city": "Paris"}')
    cases = json_calls(call)
    cases |= {
        "arguments that are cut": cut(paris, "Par"),
        "two": paris[:-1] + ", " + object_text("now", "{}") + "]",
        "with ids": '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abcdefghi"}]',
        "no space": "[TOOL_CALLS][" + object_text("now", "{}") + "]",
        "text before": "I look." + paris,
        "no JSON": "[TOOL_CALLS] [no]",
        "brackets in a string": call("weather", '{"city": "][ ]"}'),
    }
    return cases


CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def deepseek(one):
    def call(name, arguments):
        return CALLS_BEGIN + one(name, arguments) + CALLS_END

    paris = call("weather", '{"city": "Paris"}')
    cases = json_calls(call)
    cases |= {
        "arguments that are cut": cut(paris, "Par"),
        "two": CALLS_BEGIN + one("weather", '{"city": "Paris"}') + "\n" + one("now", "{}") + CALLS_END,
        "text before": "I look.\n" + paris,
        "the last mark is missing": paris[: -len(CALLS_END)],
        "no marks around": one("now", "{}"),
    }
    return cases


def deepseek_v3():
    return deepseek(lambda name, arguments: f"{CALL_BEGIN}function{SEP}{name}\n```json\n{arguments}\n```{CALL_END}")


def deepseek_v31():
    return deepseek(lambda name, arguments: f"{CALL_BEGIN}{name}{SEP}{arguments}{CALL_END}")


def functions():
    """Qwen3-Coder's and Qwen3.5's."""
    def parameters(**values):
        return "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())

    def call(name, inner):
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    paris = call("weather", parameters(city="Paris"))
    return {
        "plain": paris,
        "no parameters": call("now", ""),
        "a name with signs": call("get-it.v2", ""),
        "of every type": call("weather", parameters(city="Paris", days=3, share=0.5, exact="true", tags='["a", 1]',
                                                    where='{"a": {"b": "}"}}')),
        "booleans in other letters": call("weather", parameters(exact="False")),
        "a boolean that is none": call("weather", parameters(exact="perhaps")),
        "a whole number that is none": call("weather", parameters(days="a few")),
        "a whole number with a point": call("weather", parameters(days="3.0")),
        "a number without a point": call("weather", parameters(share="3")),
        "a large number": call("weather", parameters(days="12345678901234567890")),
        "a number with space": call("weather", parameters(days=" 3 ")),
        "a string of digits": call("weather", parameters(city="75001")),
        "a string that is null": call("weather", parameters(city="null")),
        "a number that is null": call("weather", parameters(days="null")),
        "an object that is none": call("weather", parameters(where="{a")),
        "an object in single quotes": call("weather", parameters(where="{'a': 1}")),
        "a list of None": call("weather", parameters(tags="[None, True]")),
        "an unknown parameter": call("weather", parameters(other="7")),
        "an unknown function": call("unknown", parameters(days="7")),
        "several lines": call("weather", parameters(city="New\nYork\n\n- a\n")),
        "space on both sides": call("weather", parameters(city="  a  ")),
        "an empty value": call("weather", "<parameter=city>\n\n</parameter>\n"),
        "no breaks": "<tool_call><function=weather><parameter=city>Paris</parameter></function></tool_call>",
        "markup in a value": call("weather", parameters(city="<b>a</b> & \"c\"")),
        "characters of several bytes": call("weather", parameters(city="Zürich 東京 😀")),
        "escapes are none": call("weather", parameters(city=r"a\n\u00e9")),
        "a parameter twice": call("weather", parameters(days=1) + parameters(days=2)),
        "two": paris + "\n" + call("now", ""),
        "two in one": "<tool_call>\n<function=now>\n</function>\n<function=weather>\n</function>\n</tool_call>",
        "text before": "I look.\n\n" + paris,
        "text behind": paris + "\nThat was it.",
        "text without a call": "The weather is fine.\n",
        "a value that is cut": cut(paris, "Par"),
        "a name that is cut": cut(paris, "weat"),
        "a parameter's name that is cut": cut(paris, "<parameter=ci"),
        "the last marks are missing": cut(paris, "</parameter>\n"),
        "the last mark is missing": cut(paris, "</function>\n"),
        "a parameter without its end": call("weather", "<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n"),
        "a function without marks around": "<function=now>\n</function>",
        "nothing between the marks": "<tool_call>\n</tool_call>",
        "JSON between the marks": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    }


def dsml():
    """DeepSeek-V4's."""
    mark = "｜DSML｜"

    def parameter(key, value, is_string):
        kind = "true" if is_string else "false"
        return f'<{mark}parameter name="{key}" string="{kind}">{value}</{mark}parameter>\n'

    def invoke(name, inner):
        return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>\n'

    def call(*invokes):
        return f"<{mark}tool_calls>\n" + "".join(invokes) + f"</{mark}tool_calls>"

    paris = invoke("weather", parameter("city", "Paris", True))
    return {
        "plain": call(paris),
        "no parameters": call(invoke("now", "")),
        "of every type": call(invoke("weather", parameter("city", "Paris", True) + parameter("days", 3, False) + parameter(
            "share", 0.5, False) + parameter("exact", "true", False) + parameter("tags", '["a", 1]', False) + parameter(
            "where", '{"a": {"b": "}"}}', False))),
        "a string with signs": call(invoke("weather", parameter("city", 'a "b" \\ <c> & é 😀', True))),
        "a string on lines": call(invoke("weather", parameter("city", "a\nb\n", True))),
        "a string of digits": call(invoke("weather", parameter("city", "75001", True))),
        "an empty string": call(invoke("weather", parameter("city", "", True))),
        "no JSON where it should be": call(invoke("weather", parameter("where", "{a", False))),
        "a number that is null": call(invoke("weather", parameter("days", "null", False))),
        "two": call(paris, invoke("now", "")),
        "text before": "I look.\n\n" + call(paris),
        "text without a call": "The weather is fine.\n",
        "a value that is cut": cut(call(paris), "Par"),
        "the last marks are missing": cut(call(paris), f"</{mark}parameter>\n"),
        "the last mark is missing": cut(call(paris), f"</{mark}invoke>\n"),
    }


def gemma():
    """Gemma 4's."""
    def text(words):
        return f'<|"|>{words}<|"|>'

    def call(name, inner):
        return f"<|tool_call>call:{name}{{{inner}}}<tool_call|>"

    paris = call("weather", "city:" + text("Paris"))
    return {
        "plain": paris,
        "no arguments": call("now", ""),
        "a name with signs": call("get-it.v2", ""),
        "of every type": call("weather", f"city:{text('Paris')},days:3,exact:true,share:0.5,tags:[{text('a')},1],where:{{a:{{b:{text('}')}}}}}"),
        "nested": call("weather", f"where:{{a:[1,{{b:null}}],c:{{}}}},tags:[[],[{text(']')},{{}}]]"),
        "a null": call("weather", "days:null"),
        "a negative number": call("weather", "days:-3,share:-0.25"),
        "a large number": call("weather", "days:12345678901234567890"),
        "a number with an exponent": call("weather", "share:1e3"),
        "a bare text": call("weather", "city:New York,days:3"),
        "a text with signs": call("weather", "city:" + text('a "b" \\ <c> & é 😀, {x: 1} [y]')),
        "a text on lines": call("weather", "city:" + text("a\nb\n")),
        "an empty text": call("weather", "city:" + text("")),
        "a text of digits": call("weather", "city:" + text("75001")),
        "a text with a call's end": call("weather", "city:" + text("a}b")),
        "keys with quotes": call("weather", f"{text('city')}:{text('Paris')},{text('days')}:3"),
        "a key of several words": call("weather", f"where:{{two words:1,naïve:{text('x')}}}"),
        "space": call("weather", f" city: {text('Paris')} , days: 3 "),
        "two": paris + call("now", ""),
        "two on lines": paris + "\n" + call("now", ""),
        "text before": "I look.\n\n" + paris,
        "text behind": paris + "\nThat was it.",
        "text without a call": "The weather is fine.\n",
        "a text that is cut": cut(paris, "Par"),
        "a name that is cut": cut(paris, "weat"),
        "an end mark that is missing": cut(paris, "}"),
        "no brace": "<|tool_call>call:now<tool_call|>",
        "no name": "<|tool_call>call:{}<tool_call|>",
        "no call": "<|tool_call>now{}<tool_call|>",
    }


# The parser of vLLM, the template of tests/data/third_party/templates, and the cases.
FAMILIES = {
    "hermes": ("hermes", "qwen25", hermes),
    "qwen3_coder": ("qwen3_coder", "qwen35", functions),
    "llama3_json": ("llama3_json", "llama31", llama),
    "mistral": ("mistral", "mistral_v3", mistral),
    "mistral_list": ("mistral", "mistral_v3", mistral_list),
    "deepseek_v3": ("deepseek_v3", "deepseek_v3", deepseek_v3),
    "deepseek_v31": ("deepseek_v31", "deepseek_v3", deepseek_v31),
    "deepseek_v4": ("deepseek_v4", "", dsml),
    "gemma4": ("gemma4", "gemma4", gemma),
}

SPECIALS = ["<|python_tag|>", CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEP, "<tool_call>", "</tool_call>", "<think>",
            "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>",
            "<|turn>", "<turn|>", "<|tool_response>"]


class Vocabulary:
    """As much of a tokenizer as parsers of whole texts ask for. `has_arguments_mark`: Mistral's since v11."""

    def __init__(self, has_arguments_mark):
        words = [word for word in SPECIALS if has_arguments_mark or word != "[ARGS]"]
        self.ids = {word: i for i, word in enumerate(words)}

    def get_vocab(self):
        return self.ids

    def encode(self, text, **_):
        return [self.ids[text]] if text in self.ids else [len(self.ids) + ord(c) for c in text]

    def decode(self, ids, **_):
        words = list(self.ids)
        return "".join(words[i] if i < len(words) else chr(i - len(words)) for i in ids)


def read(family, parser, text):
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "a"}], tools=TOOLS)
    # One for each answer, as the server makes them.
    reader = ToolParserManager.get_tool_parser(parser)(Vocabulary(family != "mistral_list"), request.tools)
    found = reader.extract_tool_calls(text, request)
    return {
        "content": found.content,
        "calls": [[call.function.name, call.function.arguments] for call in found.tool_calls or []],
    }


def main():
    out = {"tools": TOOLS, "families": []}
    for family, (parser, template, cases) in FAMILIES.items():
        rows = []
        for what, text in cases().items():
            rows.append({"case": what, "text": text, **read(family, parser, text)})
        out["families"].append({"family": family, "template": template, "cases": rows})
        print(family, len(rows))
    OUT.write_text(json.dumps(out, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
