# SPDX-License-Identifier: Apache-2.0
"""Hostile requests against a server, and the answer to each: the table in docs/hostile.md is this script's output.

The attacks of the other parts run with default limits, beside another tenant's heartbeats; each must be answered soon and
must not take much memory. What they took is printed.

usage: hostile.py STRATA MODEL_DIR --check docs/hostile.md [bar]     or --write
bar, for a quiet machine: answers within 2 s, p99 of heartbeats below 100 ms and memory within 1.05 of --memory, each row (of the
first table, of all its rows together; of a row with a server of its own, there). That another tenant's bits stay what they were is
looked at always.
"""
import concurrent.futures
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import httpx
import zstandard

import hostile_bytes
import hostile_openai
import hostile_own
import hostile_queues
import hostile_state
import hostile_tls
from bystander import MIB, Bystander, memory
from wire import Wire, as_json, ce, datum, dense, pb, sparse

A = [5, 9, 17, 33, 65, 12, 40, 7]
CASES, ATTACKS = [], []
LIMITED = {name: f"tml-{40_000_000 + i:032d}" for i, name in enumerate(("carl", "carla", "carlo", "carrie"))}  # tenants and their keys
LIMITS = ["--quota", "carl:requests=3", "--quota", "carla:trained-tokens=10", "--quota", "carla:disk-bytes=1", "--rate",
          "carlo:requests=0.001/s", "--rate", "carrie:sampled-tokens=50/s", "--rate", "carrie:prompt-tokens=1/s"]
STRICT = ["--memory", "1GiB", "--max-body", "1MiB", "--max-rank", "32", "--header-timeout", "1", "--body-timeout", "1", *LIMITS]
DEFAULTS = ["--memory", "2GiB"]


def case(what, want, cases=CASES):
    def register(send):
        cases.append((what, want, send))
        return send
    return register


def attack(what, want):
    return case(what, want, ATTACKS)


class World:
    def __init__(self, strata, model, data, limits, more_tenants=0):
        os.mkdir(data)
        self.keys = [subprocess.check_output([strata, "keygen"], text=True).strip() for _ in range(4)]
        made = subprocess.run([strata, "keygen", "--hash"], capture_output=True, text=True, check=True)
        self.keys.append(made.stderr.strip())
        with open(os.open(f"{data}/keys", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{self.keys[0]} alice\n{self.keys[1]} bob\n{self.keys[2]} alice read-only\n"
                       f"{self.keys[3]} alice expires=2020-01-31\n{made.stdout.strip()} alice sample-only\n")
            file.writelines(f"tml-{i:032d} crowd{i}\n" for i in range(more_tenants))
            file.writelines(f"{key} {name}\n" for name, key in LIMITED.items() if limits is STRICT)
        self.log = open(f"{data}/log", "w+")
        self.process = subprocess.Popen(
            [strata, "serve", "--model", f"tiny={model}", "--data", f"{data}/state", "--keys", f"{data}/keys", "--audit", f"{data}/audit",
             "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", *limits],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, "STRATA_LOG": "4"})
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break
        self.limit = int(limits[limits.index("--memory") + 1].removesuffix("GiB")) << 30
        self.enter()

    def enter(self):
        self.port = int(self.url.rsplit(":", 1)[1])
        self.wire, self.other = Wire(self.url, self.keys[0]), Wire(self.url, self.keys[1])
        self.reader, self.expired, self.player = [Wire(self.url, key) for key in self.keys[2:]]
        self.carl, self.carla, self.carlo, self.carrie = [Wire(self.url, key) for key in LIMITED.values()]
        self.watch = None  # what looks at servers of single rows, see hostile_own.py
        self.slowest = 0.0  # seconds of the answers since it was set, but of polls, which wait
        for wire in (self.wire, self.other):
            wire.http.event_hooks = {"request": [self.sent], "response": [self.answered]}
        self.session = self.wire.session()
        self.model = self.wire.model(self.session, 0)
        self.sampler = self.wire.sampler(self.session, 0, base_model="tiny")
        self.foreign = self.other.model(self.other.session(), 0)
        self.seq = 0

    @staticmethod
    def sent(request):
        request.extensions["sent"] = time.monotonic()

    def answered(self, response):
        took = time.monotonic() - response.request.extensions["sent"]
        if not response.request.url.path.endswith("retrieve_future"):
            self.slowest = max(self.slowest, took)

    def raw(self, data, wait=5.0):
        """The status of what answers these bytes; 0: closed without an answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as peer:
            try:
                peer.sendall(data)
                reply = peer.recv(4096)
            except OSError:
                return 0
        return int(reply[9:12]) if reply.startswith(b"HTTP/1.1 ") else 0

    def memory(self):
        """Anonymous bytes of the server."""
        return memory(self.process.pid)

    def head(self, line, *headers, body=b"", key=True):
        lines = [line, *headers] + ([f"X-API-Key: {self.keys[0]}"] if key else [])
        if not any(h.lower().startswith("host:") for h in headers):
            lines.insert(1, "Host: 127.0.0.1")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def json(self, path, body, **headers):
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return self.wire.http.post(path, content=content, headers={"Content-Type": "application/json", **headers})

    def asample(self, **change):
        self.seq += 1
        body = {"num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": A}]},
                "sampling_params": {"max_tokens": 2}, "sampling_session_id": self.sampler, "seq_id": self.seq}
        params = change.pop("params", None)
        if params:
            body["sampling_params"] = {**body["sampling_params"], **params}
        return self.json("asample", {**body, **change})

    def train(self, data, loss="cross_entropy", **more):
        return self.future(self.model.send(data, loss, **more))

    def train_json(self, fields):
        body = {"model_id": self.model.id, "seq_id": self.model.next(), "forward_backward_input": fields}
        return self.future(self.json("forward_backward", body))

    def pack(self, path, body, kind="application/json", **headers):
        """A body that is small only until it is decompressed."""
        return self.wire.http.post(path, content=zstandard.ZstdCompressor().compress(body), headers={
            "Content-Type": kind, "Content-Encoding": "zstd", **headers})

    def parts(self, wire_bytes):
        """A pass whose data are these bytes of a message."""
        head = pb.ForwardBackwardRequest(model_id=self.model.id, seq_id=self.model.next(), loss_fn="cross_entropy")
        return self.future(self.pack("forward_backward", head.SerializeToString() + wire_bytes, "application/x-protobuf"))

    def future(self, reply):
        """The answer of the future: "user error" or the like."""
        if reply.status_code != 200:
            return reply.status_code
        done = self.wire.result(reply)
        return f"future, {done['category']} error" if isinstance(done, dict) and "error" in done else "future, result"


def status(reply):
    return reply.status_code


def limited(reply, option):
    """A refusal that names the limit and says when to come again."""
    assert reply.status_code != 429 or (option in reply.json()["detail"] and int(reply.headers["retry-after"]) > 0), reply.text
    return reply.status_code


def longer_than_fits(w):
    longest = w.wire.get("get_server_capabilities").json()["supported_models"][0]["max_trained_length"]
    return w.train([ce([1 + i % 4000 for i in range(longest + 2)])])  # the last one is a target alone


def trained_too_much(w):
    session = w.carla.session()
    model = w.carla.model(session)
    for _ in range(2):
        reply = model.send([ce(A)])
        if reply.status_code == 200:
            assert isinstance(w.carla.result(reply), bytes)
    w.carla.ok(f"sessions/{session}/finish", {})
    return limited(reply, "--quota carla:trained-tokens=10")


def saved_too_much(w):
    session = w.carla.session()
    reply = w.carla.model(session).op("save_weights", path="x")
    w.carla.ok(f"sessions/{session}/finish", {})
    return limited(reply, "--quota carla:disk-bytes=1")


# HTTP
case("bytes that are not HTTP", 400)(lambda w: w.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"))
case("a header of 20 KiB", 431)(lambda w: w.raw(w.head("GET /api/v1/healthz HTTP/1.1", "X: " + "a" * 20_000)))
case("a header that never ends", 0)(lambda w: w.raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a"))
case("a body that never ends", 0)(lambda w: w.raw(w.head(
    "POST /api/v1/asample HTTP/1.1", "Content-Type: application/json", "Content-Length: 100", body=b"{")))
case("Content-Length above --max-body", 413)(lambda w: w.raw(w.head(
    "POST /api/v1/asample HTTP/1.1", "Content-Type: application/json", "Content-Length: 99999999")))
case("two different Content-Length headers", 400)(lambda w: w.raw(w.head(
    "POST /api/v1/telemetry HTTP/1.1", "Content-Length: 2", "Content-Length: 3", body=b"{} ")))
case("a malformed chunk", 400)(lambda w: w.raw(w.head(
    "POST /api/v1/asample HTTP/1.1", "Content-Type: application/json", "Transfer-Encoding: chunked", body=b"zz\r\n{}")))
case("Host of another site (DNS rebinding)", 421)(lambda w: w.raw(w.head("GET / HTTP/1.1", "Host: evil.example")))
case("no Host", 400)(lambda w: w.raw(b"GET / HTTP/1.1\r\n\r\n"))
case("Origin of another site", 403)(lambda w: w.raw(w.head("GET / HTTP/1.1", "Origin: http://evil.example")))
case("a body as text/plain (a form of another site)", 415)(lambda w: w.raw(w.head(
    "POST /api/v1/create_session HTTP/1.1", "Content-Type: text/plain", "Content-Length: 2", body=b"{}")))
case("path with ../", 404)(lambda w: w.raw(w.head("GET /../../etc/passwd HTTP/1.1")))
case("path with %2e%2e%2f", 404)(lambda w: w.raw(w.head("GET /%2e%2e%2f%2e%2e%2fetc/passwd HTTP/1.1")))
case("path with %00", 400)(lambda w: w.raw(w.head("GET /api/v1/healthz%00 HTTP/1.1")))
case("a path that is no UTF-8", 400)(lambda w: status(w.wire.get("training_runs/%ff%fe")) if "detail" in
                                    w.wire.get("training_runs/%ff%fe").json() else "broken JSON")
case("TRACE", 405)(lambda w: w.raw(w.head("TRACE /api/v1/healthz HTTP/1.1")))
case("an unknown Content-Encoding", 415)(lambda w: status(w.json("asample", "{}", **{"Content-Encoding": "br"})))
case("zstd that is none", 400)(lambda w: status(w.json("asample", b"not zstd", **{"Content-Encoding": "zstd"})))
case("zstd of 1 GiB of zeros (a bomb)", 413)(lambda w: status(w.json(
    "asample", zstandard.ZstdCompressor().compress(bytes(1 << 26)) * 16, **{"Content-Encoding": "zstd"})))
case("zstd that ends early", 400)(lambda w: status(w.json(
    "asample", zstandard.ZstdCompressor().compress(b"{}" * 500)[:-3], **{"Content-Encoding": "zstd"})))
# Keys
case("no key", 401)(lambda w: w.raw(w.head("POST /api/v1/asample HTTP/1.1", "Content-Length: 0", key=False)))
case("a wrong key", 401)(lambda w: status(w.json("asample", "{}", **{"X-API-Key": "tml-" + "0" * 40})))
case("a key of 60 KB", 431)(lambda w: status(w.json("asample", "{}", **{"X-API-Key": "t" * 60_000})))
case("an expired key", 401)(lambda w: status(w.expired.get("training_runs")))
case("a read-only key that lists", 200)(lambda w: status(w.reader.get("training_runs")))
case("a read-only key that makes a model", 403)(lambda w: status(w.reader.create(w.session, 60)))
case("a read-only key that samples", 403)(lambda w: status(w.reader.sample(w.sampler, 900, A)))
case("a read-only key that ends a session with a model", 403)(lambda w: status(w.reader.post(
    f"sessions/{w.session}/finish", {})))
case("a sample-only key that samples", 200)(lambda w: status(w.player.sample(w.sampler, 901, A)))
case("a sample-only key that trains", 403)(lambda w: status(w.player.post(
    "optim_step", {"model_id": w.model.id, "seq_id": 1})))
case("a sample-only key that deletes a checkpoint", 403)(lambda w: status(w.player.http.delete(
    "training_runs/x/checkpoints/weights/y")))
case("the fourth request of a quota of three", 429)(lambda w: limited(
    [w.carl.get("training_runs") for _ in range(4)][-1], "--quota carl:requests=3"))
case("a poll and a heartbeat beyond the quota", "404, 404")(lambda w: "%d, %d" % (
    w.carl.post("retrieve_future", {"request_id": "x"}).status_code,
    w.carl.post("session_heartbeat", {"session_id": "x"}).status_code))
case("training beyond its tenant's tokens", 429)(trained_too_much)
case("a save beyond its tenant's disk", 429)(saved_too_much)
case("a second request at 0.001/s", 429)(lambda w: limited(
    [w.carlo.get("training_runs") for _ in range(2)][-1], "--rate carlo:requests=0.001/s"))
case("a weights access token", 400)(lambda w: status(w.json("asample", "{}", **{"X-Tinker-Weights-Access-Token": "x"})))
case("another tenant's model", 404)(lambda w: status(w.json("get_info", {"model_id": w.foreign.id})))
case("another tenant's session", 404)(lambda w: status(w.other.post("session_heartbeat", {"session_id": w.session})))
case("another tenant's future", 404)(lambda w: status(w.json(
    "retrieve_future", {"request_id": w.foreign.send_step().json()["request_id"]})))
case("a signed URL with a made-up token", 404)(lambda w: status(httpx.get(
    w.url + "/api/v1/files/0123/adapter_model.safetensors?expires=9999999999&tenant=1&token=AAAA")))
# JSON
case("a body that is no JSON", 400)(lambda w: status(w.json("create_session", "{]")))
case("a body that is an array", 400)(lambda w: status(w.json("create_session", "[]")))
case("JSON nested 10,000 deep", 400)(lambda w: status(w.json("create_session", "[" * 10_000 + "]" * 10_000)))
case("a number where a text belongs", 400)(lambda w: status(w.json("get_info", {"model_id": 5})))
case("seq_id 2^63", 400)(lambda w: status(w.asample(seq_id=2 ** 63)))
case("seq_id 1e400", 400)(lambda w: status(w.json("asample", '{"sampling_session_id":"%s","seq_id":1e400}' % w.sampler)))
case("a lone surrogate in a name", 400)(lambda w: status(w.json("create_session", '{"display_name":"\\ud800"}')))
case("user_metadata of 1 MB", 413)(lambda w: status(w.json(
    "create_session", {"user_metadata": {"a": "x" * 900_000}})))
case("10,000 tags", 400)(lambda w: status(w.json("create_session", {"tags": ["x"] * 10_000})))
case("base_model ../../etc", 400)(lambda w: status(w.wire.create(w.session, 50, base="../../etc")))
case("rank 2^40", 400)(lambda w: status(w.wire.create(w.session, 51, rank=2 ** 40)))
case("rank -1", 400)(lambda w: status(w.wire.create(w.session, 52, rank=-1)))
case("a checkpoint path with ..", 400)(lambda w: status(w.json(
    "create_sampling_session", {"session_id": w.session, "sampling_session_seq_id": 9,
                                "model_path": "tinker://../../../etc/weights/passwd"})))
case("a checkpoint path that is a URL", 400)(lambda w: status(w.json(
    "create_sampling_session", {"session_id": w.session, "sampling_session_seq_id": 9,
                                "model_path": "http://169.254.169.254/latest"})))
case("an idempotency key again, for another copy", 409)(lambda w: [
    status(w.json("copy_weights", {"source_path": w.model.save(name)["path"]}, **{"X-Idempotency-Key": "once"}))
    for name in ("first", "second")][1])
case("a model of a name with NUL", 400)(lambda w: status(w.wire.create(w.session, 77, base="tiny:\0")))
case("a save named ../../x", 400)(lambda w: status(w.wire.post(
    "save_weights", {"model_id": w.model.id, "seq_id": w.model.next(), "path": "../../x"})))
# Sampling
case("an empty prompt", 400)(lambda w: status(w.asample(prompt={"chunks": []})))
case("a token beyond the vocabulary", 400)(lambda w: status(w.asample(
    prompt={"chunks": [{"type": "encoded_text", "tokens": [2 ** 31 - 1]}]})))
case("a negative token", 400)(lambda w: status(w.asample(
    prompt={"chunks": [{"type": "encoded_text", "tokens": [-1]}]})))
case("an image by URL", 400)(lambda w: status(w.asample(
    prompt={"chunks": [{"type": "image_asset_pointer", "location": "file:///etc/passwd", "format": "png"}]})))
case("num_samples 10^9", 400)(lambda w: status(w.asample(num_samples=10 ** 9)))
case("max_tokens 10^12", 400)(lambda w: status(w.asample(params={"max_tokens": 10 ** 12})))
case("temperature -1", 400)(lambda w: status(w.asample(params={"temperature": -1})))
case("temperature 1e-44 (infinite logits)", 400)(lambda w: status(w.asample(
    params={"temperature": 1e-44, "max_tokens": 1}, topk_sample_logprobs=1)))
case("top_k -2", 400)(lambda w: status(w.asample(params={"top_k": -2})))
case("structured_outputs that is a list", 400)(lambda w: status(w.asample(structured_outputs=[1])))
case("structured_outputs: a schema that is itself", 400)(lambda w: status(w.asample(
    structured_outputs={"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}})))
case("structured_outputs: a text of 10,000 brackets", 400)(lambda w: status(w.asample(structured_outputs={"json": "[" * 10_000})))
# Training
case("a protobuf that is none", 400)(lambda w: status(w.model.send_raw(b"\xff\xff\xff\xff")))
case("no data", "future, user error")(lambda w: w.train([]))
case("a datum longer than max_trained_length", "future, user error")(longer_than_fits)
case("an unknown loss", "future, user error")(lambda w: w.train([ce(A)], "exec"))
case("targets of another length", "future, user error")(lambda w: w.train([datum(
    A, target_tokens=dense([1, 2], pb.DTYPE_INT64, [2]), weights=dense([1.0, 1.0], pb.DTYPE_FLOAT32, [2]))]))
case("a shape of 2^40 x 2^40", "future, user error")(lambda w: w.train([datum(
    A, target_tokens=dense(A, pb.DTYPE_INT64, [2 ** 40, 2 ** 40]), weights=dense([1.0] * 8, pb.DTYPE_FLOAT32, [8]))]))
case("CSR with a column outside", "future, user error")(lambda w: w.train([datum(
    A, target_tokens=dense(A, pb.DTYPE_INT64, [8]),
    weights=sparse([1.0], [0, 1], [99], pb.DTYPE_FLOAT32, [1, 8]))]))
case("CSR with falling row starts", "future, user error")(lambda w: w.train([datum(
    A, target_tokens=dense(A, pb.DTYPE_INT64, [8]),
    weights=sparse([1.0], [0, 5, 1], [0], pb.DTYPE_FLOAT32, [2, 4]))]))
case("CSR of 2^40 rows", "future, user error")(lambda w: w.train([datum(
    A, target_tokens=dense(A, pb.DTYPE_INT64, [8]),
    weights=sparse([], [0], [], pb.DTYPE_FLOAT32, [2 ** 40, 8]))]))
case("a weight that is not a number", "future, user error")(lambda w: w.train([ce(A, [float("nan")] * 7)]))
case("a JSON forward_backward that is no JSON", 400)(lambda w: status(w.json("forward_backward", "{]")))
case("a JSON forward_backward without data", "future, user error")(lambda w: w.train_json({"loss_fn": "cross_entropy"}))
case("a JSON forward_backward with an image by URL", "future, user error")(lambda w: w.train_json({
    "loss_fn": "cross_entropy", "data": [{"model_input": {"chunks": [
        {"type": "image_asset_pointer", "location": "file:///etc/passwd", "format": "png"}]}, "loss_fn_inputs": {}}]}))
case("a JSON forward_backward with a weight of 1e39", "future, user error")(lambda w: w.train_json({
    "loss_fn": "cross_entropy", "data": [{"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {
        "target_tokens": {"data": [1], "dtype": "int64"}, "weights": {"data": [1e39], "dtype": "float32"}}}]}))
case("a JSON forward_backward with CSR of 2^40 rows", "future, user error")(lambda w: w.train_json({
    "loss_fn": "cross_entropy", "data": [{"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {
        "target_tokens": {"data": [1], "dtype": "int64"},
        "weights": {"data": [], "dtype": "float32", "shape": [2 ** 40, 8], "sparse_crow_indices": [0],
                    "sparse_col_indices": []}}}]}))
case("a JSON forward_backward of another tenant's model", 404)(lambda w: status(w.json(
    "forward_backward", {"model_id": w.foreign.id, "seq_id": 1})))
case("a heartbeat of 17 KiB", 413)(lambda w: status(w.json("session_heartbeat", b" " * 17_000)))
case("a heartbeat of 1 MiB in 131 bytes of zstd", 413)(lambda w: status(w.pack("session_heartbeat", b" " * (1 << 20), "application/json")))
case("HEAD of a path that needs no key, without one", 200)(lambda w: w.raw(w.head("HEAD /api/v1/healthz HTTP/1.1", key=False)))
case("POST of a path that needs no key, without one", 405)(lambda w: w.raw(w.head("POST /api/v1/healthz HTTP/1.1", "Content-Length: 0", key=False)))
case("two Authorization headers", 400)(lambda w: w.raw(w.head(
    "GET /api/v1/get_server_capabilities HTTP/1.1", *[f"Authorization: Bearer {w.keys[0]}"] * 2, key=False)))
case("a learning rate that is no 32-bit number", 400)(lambda w: status(w.json(
    "optim_step", {"model_id": w.model.id, "seq_id": w.model.next(), "adam_params": {"learning_rate": 1e308}})))
case("an infinite learning rate", 400)(lambda w: status(w.json(
    "optim_step", '{"model_id":"%s","seq_id":%d,"adam_params":{"learning_rate":1e999}}' % (w.model.id, w.model.next()))))


case("a connection that says nothing", 0)(lambda w: w.raw(b""))


# Attacks
def field(number, data):
    """A length-delimited field of a message."""
    size, head = len(data), b""
    while size >= 128:
        head += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + head + bytes([size]) + data


def zeros(columns, count, rows=1):
    """Data of sparse tensors without a value."""
    tensors = {"target_tokens": sparse([], [0] * (rows + 1), [], pb.DTYPE_INT64, [rows, columns]),
               "weights": sparse([], [0] * (rows + 1), [], pb.DTYPE_FLOAT32, [rows, columns])}
    return field(3, datum([5] * rows, **tensors).SerializeToString()) * count


def spans(w):
    """A span for every position, all of one sequence with a long prompt."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [7] * 4000}]}
    begun = w.asample(prompt=prompt, params={"max_tokens": 1}, record_stability_info=True).json()
    w.wire.result(begun)
    model = w.wire.model(w.session, 7)
    d = datum([7] * 4000, target_tokens=dense([7] * 4000, pb.DTYPE_INT64),
              logprobs=dense([0.0] * 4000, pb.DTYPE_FLOAT32), advantages=dense([0.0] * 4000, pb.DTYPE_FLOAT32))
    for each in (d.model_input_spans, d.loss_fn_input_spans):
        for _ in range(4000):
            span = each.add().prompt_tokens
            span.sequence_id, span.length = begun["sample_sequence_ids"][0], 1
    sent = model.send([d], "stable_reinforce", forward_only=True)
    return "future, result" if sent.status_code == 200 and w.wire.poll(sent.json()["request_id"]).status_code == 200 else sent.text


def unread_polls(w):
    """Ninety polls of one result of 16 MB, none of which reads its answer."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [7] * 2000}]}
    begun = w.asample(prompt=prompt, params={"max_tokens": 1}, topk_prompt_logprobs=1024).json()
    assert len(w.wire.poll(begun["request_id"]).content) > 16_000_000
    body = json.dumps({"request_id": begun["request_id"]}).encode()
    request = w.head("POST /api/v1/retrieve_future HTTP/1.1", "Content-Type: application/json",
                     f"Content-Length: {len(body)}", body=body)
    before, peers = memory(w.process.pid), []
    for _ in range(90):
        peers.append(socket.create_connection(("127.0.0.1", w.port)))
        peers[-1].sendall(request)
    time.sleep(1)
    grown = memory(w.process.pid) - before
    for peer in peers:
        peer.close()
    return "one copy" if grown < 64 * MIB else f"{grown // MIB} MiB"


def held_results(w):
    """A result of 16 MB again and again, never fetched."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [7] * 2000}]}
    for _ in range(160):
        reply = w.asample(prompt=prompt, params={"max_tokens": 1}, topk_prompt_logprobs=1024)
        if reply.status_code != 200:
            assert "--max-result-bytes" in reply.text, reply.text
            return reply.status_code
        time.sleep(0.25)
    return 200


def parked_polls(w):
    """One future, and many polls of it."""
    begun = w.asample(params={"max_tokens": 1500, "stop": []}).json()
    body = json.dumps({"request_id": begun["request_id"]}).encode()
    request = w.head("POST /api/v1/retrieve_future HTTP/1.1", "Content-Type: application/json",
                     f"Content-Length: {len(body)}", body=body)
    peers = [socket.create_connection(("127.0.0.1", w.port)) for _ in range(100)]
    for peer in peers:
        peer.sendall(request)
    peers[0].settimeout(3)
    try:
        got = int(peers[0].recv(100)[9:12])
        return "held until its result is there" if got == 200 else got
    except TimeoutError:
        return "held until its result is there"
    finally:
        for peer in peers:
            peer.close()


def held_bodies(w, window):
    """Bodies that are sent but for their last bytes, each of a large window; then another tenant's."""
    inside = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=window)).compressobj()
    start = inside.compress(bytes(40 * MIB)) + inside.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    head = w.head("POST /api/v1/forward_backward HTTP/1.1", "Content-Type: application/x-protobuf",
                  "Content-Encoding: zstd", f"Content-Length: {len(start) + 100}", body=start)
    peers = []
    for _ in range(40):
        peers.append(socket.create_connection(("127.0.0.1", w.port)))
        try:
            peers[-1].sendall(head)
        except OSError:
            pass
    time.sleep(2)
    other = w.other.post("create_session", {"tags": ["x" * 15_000], "sdk_version": "1"}).status_code
    for peer in peers:
        peer.close()
    return other


def queue_filled(w):
    """Passes behind a number that does not come, until one is refused; then that number, and another tenant's pass."""
    model, data = w.wire.model(w.session, 8), [ce([1 + i % 4000 for i in range(2049)])] * 80
    for seq in range(2, 400):
        reply = model.send(data, seq=seq)
        while "--max-body-bytes" in reply.text:  # bodies of clients that have left are still unpacked
            time.sleep(0.1)
            reply = model.send(data, seq=seq)
        if reply.status_code != 200:
            break
    refused = limited(reply, "--max-queued-bytes")
    done = [isinstance(each.wire.result(each.send([ce(A)], seq=seq)), bytes) for each, seq in ((model, 1), (w.foreign, None))]
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    return refused if all(done) else done


def zeros_at_once(w):
    """Samples beside two million zeros, sixty at once: each takes dozens of times its size while it is parsed."""
    head = json.dumps({"num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": A}]},
                       "sampling_params": {"max_tokens": 1}, "sampling_session_id": w.sampler})[:-1].encode()
    packed = [zstandard.ZstdCompressor().compress(head + b',"seq_id":%d,"a":[' % (10 ** 6 + i) + b"0," * 2_000_000 + b"0]}")
              for i in range(60)]
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        codes = set(pool.map(lambda content: httpx.post(w.url + "/api/v1/asample", content=content, timeout=60, headers={
            "X-API-Key": w.keys[0], "Content-Type": "application/json", "Content-Encoding": "zstd"}).status_code, packed))
    return 429 if codes == {200, 429} else sorted(codes)


def slow_reader(port):
    """A connection that takes next to nothing before it is read, so that the rest stays with the server."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", port))
    return peer


def wide(tokens=256, targets=1024):
    """A datum whose result is 5 MB as JSON: more than a socket takes of it."""
    count = tokens * targets
    return datum([5] * tokens, target_tokens=dense([1 + i % 4000 for i in range(count)], pb.DTYPE_INT64, [tokens, targets]),
                 weights=dense([1.0] * count, pb.DTYPE_FLOAT32, [tokens, targets]))


def unread_json(w):
    """Polls that want a long result as JSON, which is made for each of them, and do not read it."""
    long = as_json(w.model.message([wide()], "cross_entropy", w.model.next(), forward_only=True))
    begun = w.wire.ok(*long)
    w.wire.poll(begun["request_id"])
    body = json.dumps({"request_id": begun["request_id"]}).encode()
    request = w.head("POST /api/v1/retrieve_future HTTP/1.1", "Content-Type: application/json", "Accept: application/json",
                     f"Content-Length: {len(body)}", body=body)
    before, peers = memory(w.process.pid), []
    for _ in range(100):
        peers.append(slow_reader(w.port))
        peers[-1].sendall(request)
    time.sleep(10)
    grown = memory(w.process.pid) - before
    for peer in peers:
        peer.close()
    return "within --max-response-bytes" if grown < 96 * MIB else f"{grown // MIB} MiB"


def keys_emptied(w):
    """The file of keys is empty when the server is told to read it again."""
    path = pathlib.Path(w.log.name).with_name("keys")
    kept = path.read_text()
    try:
        for text in ("", kept[:60]):
            path.write_text(text)
            w.process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            for wire in (w.wire, w.other):
                if wire.get("get_server_capabilities").status_code != 200:
                    return f"{text!r}: logged out"
        return 200
    finally:
        path.write_text(kept)
        w.process.send_signal(signal.SIGHUP)


def keys_piped(w):
    """A pipe that nobody writes to stands in place of the keys' file."""
    path = pathlib.Path(w.log.name).with_name("keys")
    kept = path.read_text()
    path.unlink()
    os.mkfifo(path, 0o600)
    for _ in range(50):
        w.process.send_signal(signal.SIGHUP)
    try:
        return status(w.other.get("get_server_capabilities"))
    finally:
        path.unlink()
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(kept)
        w.process.send_signal(signal.SIGHUP)


attack("200 data of sparse rows of 2^26 columns", "future, user error")(lambda w: w.parts(zeros(2 ** 26, 200)))
attack("600 data of sparse rows that are legal one by one", "future, user error")(lambda w: w.parts(zeros(1024, 600, rows=128)))
attack("17,000 sparse tensors as JSON", "future, user error")(lambda w: w.future(w.pack("forward_backward", json.dumps({
    "model_id": w.model.id, "seq_id": w.model.next(), "forward_backward_input": {"loss_fn": "cross_entropy", "data": [
        {"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {"weights": {
            "data": [], "dtype": "float32", "shape": [1, 1024], "sparse_crow_indices": [0, 0],
            "sparse_col_indices": []}}}] * 17_000}}).encode())))
attack("4,000 spans of one sequence, each of one position", "future, result")(spans)
attack("14 million empty spans", "future, user error")(lambda w: w.parts(field(3, b"\x1a\x00" * 14_000_000)))
attack("33 million empty data", "future, user error")(lambda w: w.parts(b"\x1a\x00" * 33_000_000))
attack("33 million empty data of no model", 404)(lambda w: status(w.pack(
    "forward_backward", b"\x1a\x00" * 33_000_000, "application/x-protobuf")))
attack("10^6 chunks of one token", "future, user error")(lambda w: w.parts(field(3, b"\x0a\x08\x0a\x06\x0a\x04\x05\x00\x00\x00" * 10 ** 6)))
attack("300,000 data of one token", "future, user error")(lambda w: w.parts(
    field(3, b"\x0a\x08\x0a\x06\x0a\x04\x05\x00\x00\x00") * 300_000))
attack("a JSON forward_backward of 30 million zeros", 400)(lambda w: status(w.pack("forward_backward", b'{"a":[' + b"0," * 30_000_000 + b"0]}")))
attack("asample with 7 million zeros", 400)(lambda w: status(w.pack("asample", b'{"a":[' + b"0," * 7_000_000 + b"0]}")))
attack("asample with 20 million zeros", 413)(lambda w: status(w.pack("asample", b'{"a":[' + b"0," * 20_000_000 + b"0]}")))
attack("a heartbeat with 30 million zeros", 413)(lambda w: status(w.pack("session_heartbeat", b"[" + b"0," * 30_000_000 + b"0]")))
attack("a body of 60 MB without a key", 413)(lambda w: w.raw(b"GET /api/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                                                            b"Content-Length: 60000000\r\n\r\n"))
attack("a million recipients", 413)(lambda w: status(w.pack("save_weights_external", json.dumps({
    "model_id": w.model.id, "seq_id": 1, "age_encryption_recipients": ["age1" + "q" * 58] * 10 ** 6}).encode())))
attack("17 recipients", 400)(lambda w: status(w.json("save_weights_external", {
    "model_id": w.model.id, "seq_id": w.model.next(), "age_encryption_recipients": [f"age1{i}" for i in range(17)]})))
attack("a tag of 60 MB", 413)(lambda w: status(w.pack("create_session", json.dumps({"tags": ["x" * 60_000_000]}).encode())))
attack("a tag of 100 KB", 400)(lambda w: status(w.json("create_session", {"tags": ["x" * 100_000]})))
attack("a base model's name of 60 MB", 413)(lambda w: status(w.pack("create_model", json.dumps({
    "session_id": w.session, "model_seq_id": 90, "base_model": "tiny:" + "x" * 60_000_000, "lora_config": {"rank": 4}}).encode())))
attack("a base model's name of 300 bytes", 400)(lambda w: status(w.wire.create(w.session, 91, base="tiny:" + "x" * 300)))
attack("90 unread polls of one result", "one copy")(unread_polls)
attack("results that nobody fetches", 429)(held_results)
attack("100 polls of one future (the first one)", "held until its result is there")(parked_polls)
attack("bodies held back, and another tenant's request", 200)(lambda w: held_bodies(w, 20))
attack("windows of 16 MiB held back, and another tenant's request", 200)(lambda w: held_bodies(w, 24))
attack("training behind a missing number; then it, and another tenant's, are run", 429)(queue_filled)
attack("60 samples with 2 million zeros each, at once", 429)(zeros_at_once)
attack("100 unread polls that want a long result as JSON", "within --max-response-bytes")(unread_json)
attack("SIGHUP while the keys' file is empty, then cut off", 200)(keys_emptied)
attack("50 times SIGHUP while a pipe stands in place of the keys' file", 200)(keys_piped)


CASES += hostile_queues.LIMITED + hostile_bytes.FRAMINGS + hostile_openai.REQUESTS + hostile_state.REQUESTS
CROWDED = hostile_queues.CROWDED + hostile_openai.CROWDED
ATTACKS += hostile_bytes.ENDLESS + hostile_queues.ATTACKS + hostile_openai.STREAMS + hostile_own.ATTACKS + hostile_state.ATTACKS


def still_well(world):
    """The server lives, answers another client, and its log holds no secret."""
    assert world.process.poll() is None
    assert world.train([ce(A)]) == "future, result"
    world.log.flush()
    text = pathlib.Path(world.log.name).read_text(errors="replace")
    audit = pathlib.Path(world.log.name).with_name("audit").read_text()
    for secret in [*world.keys, "token=", "etc/weights"]:
        assert secret not in text, secret
        assert secret not in audit, secret
    lines = [json.loads(line) for line in audit.splitlines()]
    told = {(line["tenant"], line["action"], line["status"]) for line in lines}
    strangers = ("login refused", "reload", "GET /api/v1/files/{}/{}")
    assert all(line["action"] in strangers or (line["tenant"] and len(line["key"]) == 12) for line in lines)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert ("alice", "POST /api/v1/create_model", 200) in told
    assert any(line["object"] == world.model.id and line["action"].endswith("/forward_backward") for line in lines)
    assert not any("retrieve_future" in action or "heartbeat" in action or action == "GET /api/v1/usage" for _, action, _ in told)


def table(rows):
    def part(rows):
        return ["| request | answer |", "|---|---|", *(f"| {what} | {got} |" for what, got in rows)]
    lines = ["# Hostile requests", "",
             "What a server answers to each, as `tests/e2e/hostile.py` sees it; afterwards the same server still trains, and its log",
             "holds no key. A bare number is an HTTP status; 0 means closed without an answer.", "",
             *part(rows[:len(CASES)]), "", "## With default limits", "",
             "Each runs while another tenant works: its heartbeats are answered meanwhile, and its results stay the same to the bit;",
             "most are a few kilobytes as zstd. What needs other options has a server of its own, where that tenant works too.", "",
             *part(rows[len(CASES):-len(hostile_tls.ATTACKS)]), "", "## Through TLS", "",
             "Likewise. Who is silent has `--header-timeout`; everybody else is answered, or the connection closed, within 2 s.", "",
             *part(rows[-len(hostile_tls.ATTACKS):])]
    return "\n".join(lines) + "\n"


class Watch:
    """What starts processes that do not give way, from a thread that gives way; and what lies outside the bars."""

    def __init__(self, world):
        self.world, self.outside, self.starter = world, [], concurrent.futures.ThreadPoolExecutor(1)
        self.starter.submit(int).result()  # its thread has this one's priority

    def start(self, make, *arguments, **more):
        return self.starter.submit(make, *arguments, **more).result()

    def bystander(self, url, pid, limit, works=True):
        return self.start(Bystander, url, self.world.keys[1], pid, limit, works)


def run(world, cases, bystander, at_once):
    """Rows of the table, what is wrong in them, and what lies outside the bars; `at_once`: of all rows together."""
    # Who attacks gives way to the server and to the bystander: threads have priorities of their own.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    rows, wrong, slowest = [], [], 0.0
    if at_once:
        bystander.begin()
    for what, want, send in cases:
        if not at_once:
            bystander.begin()
        world.slowest = 0.0
        begin = time.monotonic()
        got = send(world)
        assert time.monotonic() - begin < 120, what
        world.json("session_heartbeat", {"session_id": world.session})  # as its client would, all the while
        slowest = max(slowest, world.slowest)
        if not at_once:
            world.watch.outside += bystander.report(f"{what} ({time.monotonic() - begin:.1f} s)", world.slowest)
        rows.append((what, got))
        if got != want:
            wrong.append(f"{what}: got {got}, wanted {want}")
    if at_once:
        world.watch.outside += bystander.report(f"{len(cases)} rows", slowest)
    still_well(world)
    return rows, wrong, world.watch.outside


def main():
    strata, model, mode, path = (sys.argv[1:] + ["--check", "-"])[:4] if len(sys.argv) < 5 else sys.argv[1:5]
    wrong, rows, outside = [], [], []
    with tempfile.TemporaryDirectory() as data:
        for name, limits, cases in (("strict", STRICT, CASES), ("defaults", DEFAULTS, ATTACKS), ("crowd", DEFAULTS, CROWDED),
                                    ("tls", DEFAULTS + hostile_tls.options(data), hostile_tls.ATTACKS)):
            world = World(strata, model, f"{data}/{name}", limits, hostile_queues.TENANTS if name == "crowd" else 0)
            world.watch = Watch(world)
            bystander = world.watch.bystander(world.url, world.process.pid, world.limit)
            try:
                with concurrent.futures.ThreadPoolExecutor(1) as generator:
                    got, bad, slow = generator.submit(run, world, cases, bystander, cases is CASES).result()
                rows, wrong, outside = rows + got, wrong + bad, outside + slow
            finally:
                bystander.end()
                world.process.terminate()
                world.process.wait(60)
    if "bar" in sys.argv[5:]:
        wrong += outside
    print("\n".join(wrong))
    if wrong:
        sys.exit(1)
    if mode == "--write":
        pathlib.Path(path).write_text(table(rows))
    else:
        assert pathlib.Path(path).read_text() == table(rows), f"{path} is not what the server answers; --write it again"
    print(f"hostile: {len(rows)} requests answered as the table says")


if __name__ == "__main__":
    main()
