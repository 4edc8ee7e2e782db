# SPDX-License-Identifier: Apache-2.0
"""A client of the wire protocol without the SDK's comforts: one call, one request."""
import os
import struct
import time

import httpx
from tinker.proto import tinker_public_pb2 as pb

KEY = "tml-0123456789abcdef0123456789abcdef"


def record(numbers, test):
    """Notes for tests/e2e/count.py which items of the acceptance list a test has shown."""
    path = os.environ.get("E2E_ITEMS")
    if path:
        with open(path, "a") as out:
            out.writelines(f"{number} {test}\n" for number in numbers)


def pack(fmt, values):
    return struct.pack(f"<{len(values)}{fmt}", *values)


def unpack(fmt, data):
    return list(struct.unpack(f"<{len(data) // struct.calcsize(fmt)}{fmt}", data))


def dense(values, dtype, shape=None):
    fmt = "q" if dtype == pb.DTYPE_INT64 else "f"
    return pb.Tensor(dense=pack(fmt, values), dtype=dtype, shape=shape or [])


def sparse(values, crow, col, dtype, shape):
    fmt = "q" if dtype == pb.DTYPE_INT64 else "f"
    csr = pb.SparseCsr(values=pack(fmt, values), crow_indices=pack("q", crow), col_indices=pack("q", col))
    return pb.Tensor(sparse_csr=csr, dtype=dtype, shape=shape)


def datum(tokens, **inputs):
    out = pb.Datum()
    out.model_input.add().encoded_text.tokens = pack("i", tokens)
    for name, tensor in inputs.items():
        out.loss_fn_inputs[name].CopyFrom(tensor)
    return out


def as_json(request):
    """The body of an SDK before 0.25 with the content of a ForwardBackwardRequest, and its endpoint."""
    def tensor(t):
        fmt, csr = "q" if t.dtype == pb.DTYPE_INT64 else "f", t.sparse_csr
        data = unpack(fmt, csr.values if t.HasField("sparse_csr") else t.dense)
        out = {"data": data, "dtype": "int64" if fmt == "q" else "float32", "shape": list(t.shape) or None}
        if t.HasField("sparse_csr"):
            out |= {"sparse_crow_indices": unpack("q", csr.crow_indices), "sparse_col_indices": unpack("q", csr.col_indices)}
        return {name: value for name, value in out.items() if value is not None}

    def chunk(c):
        return {"type": "encoded_text", "tokens": unpack("i", c.encoded_text.tokens)}
    data = [{"model_input": {"chunks": [chunk(c) for c in d.model_input]},
             "loss_fn_inputs": {name: tensor(t) for name, t in d.loss_fn_inputs.items()}} for d in request.data]
    fields = {"data": data, "loss_fn": request.loss_fn}
    if request.loss_fn_config:
        fields["loss_fn_config"] = dict(request.loss_fn_config)
    endpoint = "forward" if request.forward_only else "forward_backward"
    body = {"model_id": request.model_id, "seq_id": request.seq_id, f"{endpoint}_input": fields, "type": endpoint}
    return endpoint, body


def ce(tokens, weights=None):
    """Next-token cross entropy over a token list."""
    n = len(tokens) - 1
    return datum(tokens[:-1], target_tokens=dense(tokens[1:], pb.DTYPE_INT64, [n]),
                 weights=dense(weights or [1.0] * n, pb.DTYPE_FLOAT32, [n]))


def rl(tokens, logprobs, advantages, **more):
    n = len(tokens) - 1
    return datum(tokens[:-1], target_tokens=dense(tokens[1:], pb.DTYPE_INT64, [n]),
                 logprobs=dense(logprobs, pb.DTYPE_FLOAT32, [n]),
                 advantages=dense(advantages, pb.DTYPE_FLOAT32, [n]), **more)


class Wire:
    def __init__(self, url, key=KEY, version="0.38.0", timeout=60, **options):
        self.url, self.key = url, key
        self.http = httpx.Client(base_url=url + "/api/v1/", timeout=timeout, **options,
                                 headers={"X-API-Key": key, "X-Stainless-Package-Version": version})

    def post(self, path, body, **more):
        return self.http.post(path, json=body, **more)

    def get(self, path, **more):
        return self.http.get(path, **more)

    def ok(self, path, body, **more):
        reply = self.post(path, body, **more)
        assert reply.status_code == 200, (path, reply.status_code, reply.text)
        return reply.json()

    def poll(self, request_id, **headers):
        for _ in range(100):
            reply = self.post("retrieve_future", {"request_id": request_id, "allow_metadata_only": True}, headers=headers)
            if reply.status_code != 408:
                return reply
        raise AssertionError("never done")

    def result(self, submission):
        """The final answer of a future: a JSON object, or the bytes of a message."""
        if isinstance(submission, httpx.Response):
            assert submission.status_code == 200, (submission.status_code, submission.text)
            submission = submission.json()
        reply = self.poll(submission["request_id"])
        assert reply.status_code == 200, (reply.status_code, reply.text)
        if reply.headers["content-type"] == "application/x-protobuf":
            return reply.content
        return reply.json()

    def session(self, **more):
        return self.ok("create_session", {"tags": [], "sdk_version": "0.38.0", **more})["session_id"]

    def create(self, session, number=0, rank=4, base="tiny", seed=1, lora=None, **more):
        config = {"rank": rank, "seed": seed, "train_unembed": True, "train_mlp": True, "train_attn": True}
        return self.post("create_model", {
            "session_id": session, "model_seq_id": number, "base_model": base, "type": "create_model",
            "lora_config": {**config, **(lora or {})}, "optimizer_config": {"type": "adamw"}, **more})

    def model(self, session, number=0, **more):
        done = self.result(self.create(session, number, **more))
        assert "error" not in done, done
        return Model(self, done["model_id"])

    def sampler(self, session, number, **more):
        return self.ok("create_sampling_session", {"session_id": session, "sampling_session_seq_id": number,
                                                   **more})["sampling_session_id"]

    def sample(self, sampler, seq_id, prompt, max_tokens=4, count=1, params=None, **more):
        return self.post("asample", {
            "num_samples": count, "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
            "sampling_params": {"max_tokens": max_tokens, **(params or {})}, "sampling_session_id": sampler,
            "seq_id": seq_id, "type": "sample", **more})

    def sampled(self, *args, **more):
        data = self.result(self.sample(*args, **more))
        assert isinstance(data, bytes), data
        return pb.SampleResponse.FromString(data)


class Model:
    def __init__(self, wire, model_id):
        self.wire = wire
        self.id = model_id
        self.seq = 0

    def next(self):
        self.seq += 1
        return self.seq

    def message(self, data, loss, seq, forward_only=False, config=None):
        out = pb.ForwardBackwardRequest(model_id=self.id, seq_id=seq, loss_fn=loss, forward_only=forward_only)
        out.data.extend(data)
        for name, value in (config or {}).items():
            out.loss_fn_config[name] = value
        return out

    def send_raw(self, body, **headers):
        return self.wire.http.post("forward_backward", content=body,
                                   headers={"Content-Type": "application/x-protobuf", **headers})

    def send(self, data, loss="cross_entropy", seq=None, **more):
        seq = self.next() if seq is None else seq
        return self.send_raw(self.message(data, loss, seq, **more).SerializeToString())

    def send_json(self, data, loss="cross_entropy", seq=None, **more):
        """Like send(), as SDKs before 0.25 do."""
        return self.wire.post(*as_json(self.message(data, loss, self.next() if seq is None else seq, **more)))

    def run_json(self, data, loss="cross_entropy", **more):
        """JSON both ways, as SDKs before 0.19 speak."""
        submission = self.send_json(data, loss, **more).json()
        return self.wire.poll(submission["request_id"], Accept="application/json").json()

    def run(self, data, loss="cross_entropy", send=None, **more):
        done = self.wire.result((send or self.send)(data, loss, **more))
        return pb.ForwardBackwardOutput.FromString(done) if isinstance(done, bytes) else done

    def logprobs(self, data, **more):
        out = self.run(data, forward_only=True, **more)
        assert not isinstance(out, dict), out
        return arrays(out)

    def send_step(self, seq=None, **adam):
        return self.wire.post("optim_step", {
            "adam_params": {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
                            "grad_clip_norm": 0.0, **adam},
            "model_id": self.id, "seq_id": self.next() if seq is None else seq, "type": "optim_step"})

    def step(self, **more):
        return self.wire.result(self.send_step(**more))

    def op(self, endpoint, **fields):
        return self.wire.post(endpoint, {"model_id": self.id, "seq_id": self.next(), "type": endpoint, **fields})

    def save(self, name, endpoint="save_weights", **fields):
        return self.wire.result(self.op(endpoint, path=name, **fields))


def arrays(output, field="logprobs"):
    """One list of floats a datum, in order."""
    out = []
    for record in output.loss_fn_outputs:
        tensor = record.fields[field]
        offsets = unpack("q", tensor.offsets)
        out += [unpack("f", tensor.data[a:b]) for a, b in zip(offsets, offsets[1:])]
    return out


def is_user_error(done):
    return isinstance(done, dict) and done.get("category") == "user" and bool(done.get("error"))


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False
