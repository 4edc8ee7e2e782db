# SPDX-License-Identifier: Apache-2.0
"""OpenAI's endpoints under attack, as rows of tests/e2e/hostile.py: (what, want, send(world))."""
import concurrent.futures
import json
import socket
import struct
import time

import httpx

from wire import ce

HELLO = [{"role": "user", "content": "Hello"}]
ENDLESS = {"4070": -100, "4072": -100}  # the end tokens never come


def ask(world, body, path="chat/completions", key=None, **headers):
    content = body if isinstance(body, (bytes, str)) else json.dumps({"model": "tiny", **body})
    reply = httpx.post(f"{world.url}/v1/{path}", content=content, timeout=60,
                       headers={"Authorization": f"Bearer {key or world.keys[0]}", "Content-Type": "application/json", **headers})
    return reply.status_code if reply.status_code < 400 or "error" in reply.json() else f"{reply.status_code} in another form"


def chat(**more):
    return lambda world: ask(world, {"messages": HELLO, **more})


REQUESTS = [
    ("a chat with a wrong key", 401, lambda w: ask(w, {"messages": HELLO}, key="tml-none")),
    ("a chat with a read-only key", 403, lambda w: ask(w, {"messages": HELLO}, key=w.keys[2])),
    ("a chat with ../../etc", 404, lambda w: ask(w, {"model": "../../etc", "messages": HELLO})),
    ("a chat with a checkpoint that is none", 404, lambda w: ask(w, {"model": "tinker://a:train:0/sampler_weights/x",
                                                                     "messages": HELLO})),
    ("a chat nested 10,000 deep", 400, lambda w: ask(w, '{"messages":' + "[" * 10000)),
    ("a chat whose content is a number", 400, lambda w: ask(w, {"messages": [{"role": "user", "content": 7}]})),
    ("a chat with an image by URL", 400, lambda w: ask(w, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]}]})),
    ("a chat with arguments nested 10,000 deep", 400, lambda w: ask(w, {"messages": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 10000}}]}]})),
    ("a chat of a template's variable messages", 400, chat(chat_template_kwargs={"messages": []})),
    ("a chat with n 10^9", 400, chat(n=10 ** 9)),
    ("a chat with max_tokens 10^12", 400, chat(max_tokens=10 ** 12)),
    ("a chat with 10,000 biases", 400, chat(logit_bias={str(i): 1 for i in range(10000)})),
    ("a chat with a bias of 1e300", 400, chat(logit_bias={"5": 1e300})),
    ("a chat with 10,000 tools", 400, chat(tools=[{"type": "function", "function": {"name": "f"}}] * 10000)),
    ("a chat with a stop text of 100 KB", 400, chat(stop="x" * 100000)),
    ("a chat with a field that nobody knows", 400, chat(frobnicate=1)),
    ("a completion of 100,000 prompts", 400, lambda w: ask(w, {"prompt": ["a"] * 100000}, "completions")),
    ("a completion of a token beyond the vocabulary", 400, lambda w: ask(w, {"prompt": [10 ** 9]}, "completions")),
]


def fitting(schema, **more):
    return chat(max_tokens=9, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}})


def nested(levels):
    return json.loads('{"type": "array", "minItems": 1, "maxItems": 50, "items": ' * levels + "{}" + "}" * levels)


HUGE = {"type": "object", "properties": {f"p{i}": nested(20) for i in range(40)}}  # long to compile

REQUESTS += [
    ("a schema that is itself", 400, fitting({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})),
    ("a schema that may be itself", 200, fitting({"anyOf": [{"type": "null"}, {"$ref": "#"}]})),
    ("a schema nested 70 deep", 400, fitting(nested(70))),
    ("a schema of 10,000 properties", 400, fitting({"type": "object", "properties": {f"p{i}": {} for i in range(10000)}})),
    ("a schema of 5,001 values", 400, fitting({"enum": list(range(5001))})),
    ("a schema of a megabyte", 400, fitting({"title": "x" * 1000000})),
    ("a schema that nothing fits", 400, fitting({"type": "integer", "minimum": 3, "maximum": 2})),
    ("a regular expression that blows up", 200, chat(structured_outputs={"regex": "(a|b)*a(a|b){20}"}, max_tokens=9)),
    ("a regular expression of a thousand thousands", 200, chat(structured_outputs={"regex": "(" * 10 + "a" + "{1,500}b?)" * 10},
                                                                  max_tokens=9)),
    ("rules that lead nowhere", 400, chat(structured_outputs={"grammar": "root ::= a\na ::= b"})),
    ("a choice of nothing", 400, chat(structured_outputs={"choice": []})),
    ("a strict tool that is loose", 400, chat(tools=[{"type": "function", "function": {
        "name": "f", "strict": True, "parameters": {"type": "object"}}}])),
]


def open_stream(world, **more):
    """A socket on which a long stream has begun."""
    body = json.dumps({"model": "tiny", "prompt": [5, 6], "max_tokens": 7000, "temperature": 1, "stream": True,
                       "logit_bias": ENDLESS, **more}).encode()
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(30)
    peer.connect(("127.0.0.1", world.port))
    peer.sendall(world.head("POST /v1/completions HTTP/1.1", "Content-Type: application/json", f"Content-Length: {len(body)}", body=body))
    head = peer.recv(12)
    assert head == b"HTTP/1.1 200", head
    return peer


def bystander_chats(world):
    begin = time.monotonic()
    status = ask(world, {"messages": HELLO, "max_tokens": 4}, key=world.keys[1])
    took = time.monotonic() - begin
    return status if took < 20 else f"{status} after {took:.0f} s"


def hang_ups(world):
    """Two hundred streams whose clients reset them as soon as they have begun; then another tenant's chat."""
    for _ in range(200):
        peer = open_stream(world)
        while b"data: " not in peer.recv(4096):
            pass
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    return bystander_chats(world)


def unread(world):
    """Streams with all their logprobs that nobody reads; then another tenant's chat."""
    peers = [open_stream(world, logprobs=20, max_tokens=2000) for _ in range(100)]
    time.sleep(3)  # long enough to fill what they may hold
    status = bystander_chats(world)
    for peer in peers:
        peer.close()
    return status


def half_open(world):
    """Streams whose clients have said that they send nothing more; then another tenant's chat."""
    peers = [open_stream(world) for _ in range(50)]
    for peer in peers:
        peer.shutdown(socket.SHUT_WR)
    status = bystander_chats(world)
    for peer in peers:
        peer.close()
    return status


def long_chats(w):
    """Chats and completions of 16 MiB by eight of 3,000 tenants; then another's pass, whose body is read elsewhere too."""
    most = (16 << 20) - 400
    texts = [" " * most, "some words " * (most // 11), "a" * most, "\u00e9" * (most // 2)]
    bodies = [{"messages": [{"role": "user", "content": text}], "max_tokens": 1} for text in texts]
    bodies += [{"prompt": text, "max_tokens": 1} for text in texts[:3]]
    bodies.append({"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f", "description": texts[2]}}]})

    def send(i):
        body = json.dumps({"model": "tiny", **bodies[i]}, ensure_ascii=False).encode()
        return ask(w, body, "completions" if "prompt" in bodies[i] else "chat/completions", key=f"tml-{i:032d}")

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        asked = [pool.submit(send, i) for i in range(len(bodies))]
        time.sleep(1)
        begin = time.monotonic()
        accepted = w.foreign.send([ce([5 + i * 7 % 500 for i in range(900)])] * 20)
        took = time.monotonic() - begin
        codes = {one.result() for one in asked}
    assert took < 5, f"another tenant's pass was taken after {took:.1f} s"
    done = w.other.result(accepted)
    return f"{'refused' if codes <= {400, 429, 503} else sorted(codes)}; {'result' if isinstance(done, bytes) else done}"


def compiles_all_day(world):
    """One tenant's schemas that take long, twelve at once; then another tenant's chat with a schema of its own."""
    def send(i):
        schema = {**HUGE, "title": str(i)}
        return ask(world, {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
                           "max_tokens": 9})

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(send, i) for i in range(12)]
        time.sleep(1)
        begin = time.monotonic()
        status = ask(world, {"messages": HELLO, "max_tokens": 40, "structured_outputs": {"choice": ["yes", "no"]}}, key=world.keys[1])
        took = time.monotonic() - begin
        codes = {one.result() for one in asked}
    assert codes <= {200, 400, 429}, codes
    return status if took < 8 else f"{status} after {took:.0f} s"


CROWDED = [("chats and completions of 16 MiB by eight of 3,000 tenants, and another's training", "refused; result", long_chats)]
STREAMS = [("200 streams that are hung up at once, and another tenant's chat", 200, hang_ups),
           ("100 streams that nobody reads, and another tenant's chat", 200, unread),
           ("schemas that take long, all day, and another tenant's chat with one", 200, compiles_all_day),
           ("50 half-closed streams, and another tenant's chat", 200, half_open)]
