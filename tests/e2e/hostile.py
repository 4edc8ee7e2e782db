"""Hostile requests against a server, and the answer to each: the table in docs/hostile.md is this script's output.

usage: hostile.py STRATA MODEL_DIR --check docs/hostile.md     or --write
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import zstandard

from wire import Wire, ce, datum, dense, pb, sparse

A = [5, 9, 17, 33, 65, 12, 40, 7]
CASES = []


def case(what, want):
    def register(send):
        CASES.append((what, want, send))
        return send
    return register


class World:
    def __init__(self, strata, model, data):
        self.keys = [subprocess.check_output([strata, "keygen"], text=True).strip() for _ in range(2)]
        with open(os.open(f"{data}/keys", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{self.keys[0]} alice\n{self.keys[1]} bob\n")
        self.log = open(f"{data}/log", "w+")
        self.process = subprocess.Popen(
            [strata, "serve", "--model", f"tiny={model}", "--data", f"{data}/state", "--keys", f"{data}/keys",
             "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--memory", "1GiB", "--max-body", "1MiB",
             "--max-rank", "32", "--header-timeout", "1", "--body-timeout", "1"],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, "STRATA_LOG": "4"})
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break
        self.port = int(self.url.rsplit(":", 1)[1])
        self.wire, self.other = Wire(self.url, self.keys[0]), Wire(self.url, self.keys[1])
        self.session = self.wire.session()
        self.model = self.wire.model(self.session, 0)
        self.sampler = self.wire.sampler(self.session, 0, base_model="tiny")
        self.foreign = self.other.model(self.other.session(), 0)
        self.seq = 0

    def raw(self, data, wait=5.0):
        """The status of what answers these bytes; 0: closed without an answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as peer:
            try:
                peer.sendall(data)
                reply = peer.recv(4096)
            except OSError:
                return 0
        return int(reply[9:12]) if reply.startswith(b"HTTP/1.1 ") else 0

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

    def future(self, reply):
        """The answer of the future: "user error" or the like."""
        if reply.status_code != 200:
            return reply.status_code
        done = self.wire.result(reply)
        return f"future, {done['category']} error" if isinstance(done, dict) and "error" in done else "future, result"


def status(reply):
    return reply.status_code


# HTTP
case("bytes that are not HTTP", 400)(lambda w: w.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"))
case("a header of 100 KiB", 431)(lambda w: w.raw(w.head("GET /api/v1/healthz HTTP/1.1", "X: " + "a" * 100_000)))
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
case("no Host", 421)(lambda w: w.raw(b"GET / HTTP/1.1\r\n\r\n"))
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
case("a key of 60 KB", 401)(lambda w: status(w.json("asample", "{}", **{"X-API-Key": "t" * 60_000})))
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
case("user_metadata of 1 MB", 400)(lambda w: status(w.json(
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
# Training
case("a protobuf that is none", 400)(lambda w: status(w.model.send_raw(b"\xff\xff\xff\xff")))
case("no data", "future, user error")(lambda w: w.train([]))
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
case("a JSON pass that is no JSON", 400)(lambda w: status(w.json("forward_backward", "{]")))
case("a JSON pass without data", "future, user error")(lambda w: w.train_json({"loss_fn": "cross_entropy"}))
case("a JSON pass with an image by URL", "future, user error")(lambda w: w.train_json({
    "loss_fn": "cross_entropy", "data": [{"model_input": {"chunks": [
        {"type": "image_asset_pointer", "location": "file:///etc/passwd", "format": "png"}]}, "loss_fn_inputs": {}}]}))
case("a JSON pass with a weight of 1e39", "future, user error")(lambda w: w.train_json({
    "loss_fn": "cross_entropy", "data": [{"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {
        "target_tokens": {"data": [1], "dtype": "int64"}, "weights": {"data": [1e39], "dtype": "float32"}}}]}))
case("a JSON pass with CSR of 2^40 rows", "future, user error")(lambda w: w.train_json({
    "loss_fn": "cross_entropy", "data": [{"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {
        "target_tokens": {"data": [1], "dtype": "int64"},
        "weights": {"data": [], "dtype": "float32", "shape": [2 ** 40, 8], "sparse_crow_indices": [0],
                    "sparse_col_indices": []}}}]}))
case("a JSON pass of another tenant's model", 404)(lambda w: status(w.json(
    "forward_backward", {"model_id": w.foreign.id, "seq_id": 1})))
case("an infinite learning rate", 400)(lambda w: status(w.json(
    "optim_step", '{"model_id":"%s","seq_id":%d,"adam_params":{"learning_rate":1e999}}' % (w.model.id, w.model.next()))))


def still_well(world):
    """The server lives, answers another client, and its log holds no secret."""
    assert world.process.poll() is None
    assert world.train([ce(A)]) == "future, result"
    world.log.flush()
    text = pathlib.Path(world.log.name).read_text(errors="replace")
    for secret in [*world.keys, "token=", "etc/weights"]:
        assert secret not in text, secret


def table(rows):
    lines = ["# Hostile requests", "",
             "What a server answers to each, as `tests/e2e/hostile.py` sees it; afterwards the same server still trains, and its log",
             "holds no key. A bare number is an HTTP status; 0 means closed without an answer.", "",
             "| request | answer |", "|---|---|"]
    return "\n".join(lines + [f"| {what} | {got} |" for what, got in rows]) + "\n"


def main():
    strata, model, mode, path = (sys.argv[1:] + ["--check", "-"])[:4] if len(sys.argv) < 5 else sys.argv[1:5]
    wrong, rows = [], []
    with tempfile.TemporaryDirectory() as data:
        world = World(strata, model, data)
        try:
            for what, want, send in CASES:
                begin = time.monotonic()
                got = send(world)
                rows.append((what, got))
                if got != want:
                    wrong.append(f"{what}: got {got}, wanted {want}")
                assert time.monotonic() - begin < 20, what
            still_well(world)
        finally:
            world.process.terminate()
            world.process.wait(60)
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
