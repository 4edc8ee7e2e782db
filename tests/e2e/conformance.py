# SPDX-License-Identifier: Apache-2.0
"""Walks the acceptance list of the Tinker protocol against a running server, item by item.

usage: conformance.py URL KEY_A KEY_B [--only N,N]     (tools/run/e2e.sh starts the server)
Each test names the items that it shows; count.py says where the others are shown.
"""
import math
import random
import sys
import time
import traceback

import httpx
import zstandard

from wire import (Wire, arrays, ce, datum, dense, is_user_error, pb, record, rl, sparse, unpack, wait_until)

TESTS = []
A = [5, 9, 17, 33, 65, 12, 40, 7]
B = [100, 30, 8, 71, 55, 2, 9, 14, 77]


def item(*numbers):
    def register(test):
        TESTS.append((numbers, test))
        return test
    return register


class World:
    """What the tests share: clients of two tenants, one session, one model."""

    def __init__(self, url, key_a, key_b):
        self.url, self.key_a, self.key_b = url, key_a, key_b
        self.wire = Wire(url, key_a)
        self.other = Wire(url, key_b)
        self.session = self.wire.session()
        self.numbers = iter(range(10, 10_000))
        self.samplers = iter(range(10, 10_000))
        self.model = self.wire.model(self.session, 0)
        self.base = self.wire.sampler(self.session, 0, base_model="tiny")
        self.seq = iter(range(1_000_000))

    def fresh(self, **more):
        return self.wire.model(self.session, next(self.numbers), **more)

    def sampler(self, **more):
        return self.wire.sampler(self.session, next(self.samplers), **more)

    def sampled(self, prompt, sampler=None, **more):
        return self.wire.sampled(sampler or self.base, next(self.seq), prompt, **more)

    def refused(self, **more):
        """An asample that must be refused at submission."""
        fields = {"max_tokens": 2, "prompt": [1, 2], **more}
        prompt = fields.pop("prompt")
        reply = self.wire.sample(self.base, next(self.seq), prompt, **fields)
        assert reply.status_code == 400 and reply.json()["detail"], (more, reply.status_code, reply.text)
        return reply.json()["detail"]


def close(a, b, tolerance=1e-4):
    assert len(a) == len(b), (len(a), len(b))
    worst = max((abs(x - y) for x, y in zip(a, b)), default=0.0)
    assert worst <= tolerance, worst


def status(reply, *wanted):
    assert reply.status_code in wanted, (reply.status_code, reply.text)
    assert reply.status_code < 400 or isinstance(reply.json(), dict)
    return reply


@item(1, 2)
def config_serves_sdk(w):
    for body in ({}, {"sdk_version": "0.38.0", "unknown": [1]}):
        assert w.wire.ok("client/config", body)["use_pyqwest_transport"] is False


@item(3)
def dynamic_config(w):
    assert w.wire.ok("client/dynamic_config", {})["refresh_interval_sec"] >= 10


@item(4, 5)
def keys(w):
    bare = httpx.Client(base_url=w.url + "/api/v1/")
    assert bare.get("healthz").json() == {"status": "ok"}
    for key in ({}, {"X-API-Key": "tml-wrong-wrong-wrong-wrong"}):
        for method, path in (("POST", "client/config"), ("GET", "get_server_capabilities"), ("GET", "nothing")):
            status(bare.request(method, path, headers=key), 401)


@item(6)
def capabilities(w):
    models = {m["model_name"]: m for m in w.wire.get("get_server_capabilities").json()["supported_models"]}
    assert models["tiny"]["max_context_length"] >= models["tiny"]["max_trained_length"] > 0 and "also-tiny" in models


@item(7)
def sessions_are_fresh(w):
    assert w.wire.session() != w.wire.session()
    head = {"X-Idempotency-Key": "stainless-python-retry-1"}
    first = w.wire.ok("create_session", {}, headers=head)
    assert first == w.wire.ok("create_session", {}, headers=head)


@item(9)
def heartbeat_of_unknown(w):
    status(w.wire.post("session_heartbeat", {"session_id": "no"}), 404)
    assert w.wire.post("session_heartbeat", {"session_id": w.session}).status_code == 200


@item(10)
def telemetry(w):
    for body in ({}, {"events": [{"x": None}], "session_id": "sessionless-1"}):
        assert w.wire.ok("telemetry", body) == {"status": "accepted"}


@item(11, 12)
def prefix_and_unknown_fields(w):
    assert w.wire.get("get_server_capabilities?x=1&y").status_code == 200
    reply = httpx.get(w.url + "/box/strata/api/v1/healthz")
    assert reply.json() == {"status": "ok"}, "start the server with --public-url .../box/strata"


@item(13)
def chunked_bodies(w):
    def parts():
        yield b"{\"session_id\":"
        yield f"\"{w.session}\"}}".encode()
    reply = w.wire.http.post("session_heartbeat", content=parts(), headers={"Content-Type": "application/json"})
    assert reply.status_code == 200, reply.text


@item(15, 110)
def model_ids(w):
    assert w.model.id == f"{w.session}:train:0" and "/" not in w.session and ":" not in w.session
    info = w.wire.ok("get_info", {"model_id": w.model.id})
    assert info["model_id"] == w.model.id and info["is_lora"] is True and info["lora_rank"] == 4
    assert info["model_data"]["model_name"] == "tiny" and info["model_data"]["tokenizer_id"]


@item(16)
def create_twice(w):
    number = next(w.numbers)
    first, second = w.wire.create(w.session, number).json(), w.wire.create(w.session, number).json()
    assert first == second
    w.wire.result(first)
    status(w.wire.create(w.session, number, rank=8), 400)  # not 409, which clients repeat for minutes


@item(17)
def unknown_base(w):
    reply = status(w.wire.create(w.session, next(w.numbers), base="no/such"), 400)
    assert "no/such" in reply.text


@item(18, 19)
def bad_lora(w):
    for rank in (0, -1, 3, 1 << 20):
        status(w.wire.create(w.session, next(w.numbers), rank=rank), 400)
    off = {"train_attn": False, "train_mlp": False, "train_unembed": False}
    status(w.wire.create(w.session, next(w.numbers), lora=off), 400)


@item(20)
def unknown_session(w):
    status(w.wire.create("nothing", 0), 403, 404)


@item(21, 22, 23)
def models_are_apart(w):
    one, two = w.fresh(), w.fresh()
    before = one.logprobs([ce(A)])[0]
    assert before == two.logprobs([ce(A)])[0]
    prompt = unpack("f", w.sampled(A, max_tokens=1, prompt_logprobs=True).prompt_logprobs)[1:]
    close(prompt, before, 1e-5)
    one.run([ce(A)])
    one.step(learning_rate=1e-2)
    assert one.logprobs([ce(A)])[0] != before and two.logprobs([ce(A)])[0] == before


@item(24)
def unload(w):
    model = w.fresh()
    sampler = w.wire.result(model.op("save_weights_for_sampler", sampling_session_seq_id=next(w.samplers)))
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    status(model.send([ce(A)]), 404)
    w.sampled(A, sampler["sampling_session_id"])


@item(25)
def info_of_unknown(w):
    status(w.wire.post("get_info", {"model_id": "nothing:train:0"}), 404)


@item(26)
def held_polls(w):
    model = w.fresh()
    held = model.send([ce(A)], seq=2).json()
    start = time.monotonic()
    reply = w.wire.post("retrieve_future", {"request_id": held["request_id"]})
    took = time.monotonic() - start
    assert reply.status_code == 408 and 10 <= took < 45 and reply.json()["queue_state"], (reply.text, took)


@item(27, 28, 30)
def results_again(w):
    model = w.fresh()
    first = model.send([ce(A)]).json()
    one, two = w.wire.poll(first["request_id"]), w.wire.poll(first["request_id"])
    assert one.content == two.content and one.headers["content-type"] == "application/x-protobuf"
    assert isinstance(model.step(), dict)


@item(29)
def payloads_are_whole(w):
    model = w.fresh()
    for submission, kind in ((model.send([ce(A)]), "application/x-protobuf"), (model.send_step(), "application/json")):
        number = submission.json()["request_id"]
        first = w.wire.poll(number)
        for allowed in (False, True, True, None):
            body = {"request_id": number} | ({} if allowed is None else {"allow_metadata_only": allowed})
            reply = w.wire.post("retrieve_future", body)
            assert reply.headers["content-type"] == kind and reply.content == first.content
            assert b"complete_metadata" not in reply.content


@item(31, 53)
def unknown_loss(w):
    model = w.fresh()
    done = model.run([ce(A)], loss="no_such_loss")
    assert is_user_error(done) and "no_such_loss" in done["error"], done
    model.logprobs([ce(A)])


@item(32, 34)
def unknown_requests(w):
    for text in ("nothing", "", "12", "x" * 10_000, "\u00e9"):
        status(w.wire.post("retrieve_future", {"request_id": text}), 404)
    mine = w.model.send([ce(A)]).json()
    w.wire.result(mine)
    status(w.other.post("retrieve_future", mine), 404)


@item(36)
def content_types(w):
    model = w.fresh()
    body = model.message([ce(A)], "cross_entropy", model.next()).SerializeToString()
    w.wire.result(model.send_raw(body, **{"Content-Type": "application/x-protobuf; v=1"}))


@item(37)
def zstd_bodies(w):
    model = w.fresh()
    body = model.message([ce(A)], "cross_entropy", model.next()).SerializeToString()
    packed = zstandard.compress(body)
    w.wire.result(model.send_raw(packed, **{"Content-Encoding": "zstd"}))
    status(model.send_raw(packed[:-3] + b"xyz"[:3], **{"Content-Encoding": "zstd"}), 400)
    status(model.send_raw(zstandard.compress(bytes(1 << 28)), **{"Content-Encoding": "zstd"}), 413)


@item(38)
def garbage(w):
    for body in (b"", b"\xff\xff\xff\xff", b"\x0a\x7f"):
        status(w.model.send_raw(body), 400)


@item(39)
def json_bodies(w):
    """Accepted, and every bit of the results and of the training is that of the binary body."""
    n = len(A) - 1
    ints, floats = pb.DTYPE_INT64, pb.DTYPE_FLOAT32
    q, adv = [-0.1 * i - 1 / 3 for i in range(n)], [1.0, -1.0, 0.5, 0.0, 2.0, -0.5, 1 / 7]
    mask = dense([1.0] * n, floats, [n])
    csr = datum(A[:-1], target_tokens=sparse([t for x in A[1:] for t in (x, x + 1)], [2 * i for i in range(n + 1)],
                                             [0, 1] * n, ints, [n, 2]),
                weights=sparse([0.1] * n, list(range(n + 1)), [0] * n, floats, [n, 2]))
    calls = [([ce(A, [0.1, -1 / 3, 0.0, 2.0, 1e-30, -0.25, 3.0]), ce(B), csr], "cross_entropy", {}),
             ([rl(A, q, adv)], "importance_sampling", {}),
             ([rl(A, q, adv), rl(A, q, adv)], "ppo", {"config": {"clip_low_threshold": 0.7}}),
             ([rl(A, q, adv)], "cispo", {}), ([rl(A, q, adv)], "dro", {"config": {"beta": 0.05}}),
             ([rl(A, q, adv, sequence_ratio_mask=mask)], "gspo", {}), ([ce(B)], "cross_entropy", {"forward_only": True})]
    binary, json_model, json_both = w.fresh(), w.fresh(), w.fresh()
    for data, loss, more in calls:
        one = binary.run(data, loss, **more)
        two = json_model.run(data, loss, send=json_model.send_json, **more)
        assert not isinstance(one, dict) and not isinstance(two, dict), (one, two)
        assert one == two, (loss, one, two)
        both = json_both.run_json(data, loss, **more)
        assert both["metrics"] == dict(one.metrics) and both["loss_fn_output_type"] == "ArrayRecord", both
        assert [x["logprobs"]["data"] for x in both["loss_fn_outputs"]] == arrays(one)
        assert both["loss_fn_outputs"][-1]["logprobs"]["shape"] == ([n, 2] if data[-1] is csr else [len(arrays(one)[-1])])
    assert binary.step() == json_model.step() == json_both.step()
    assert binary.logprobs([ce(A)]) == json_model.logprobs([ce(A)]) == json_both.logprobs([ce(A)])
    one = json_model.send([ce(A)]).json()
    w.wire.result(one)
    poll = w.wire.poll(one["request_id"], Accept="application/json")  # came as protobuf, goes as protobuf
    assert poll.headers["content-type"] == "application/x-protobuf"
    assert json_model.send_json([ce(A)], seq=json_model.seq).json() == one  # the same request
    status(json_model.send_json([ce(B)], seq=json_model.seq), 409)
    for endpoint in ("forward_backward", "forward"):
        status(w.wire.post(endpoint, {"model_id": w.model.id, "seq_id": 0}), 400)
        status(w.wire.post(endpoint, {"model_id": "nothing:train:0", "seq_id": 1}), 404)
        status(w.wire.http.post(endpoint, content=b"{]", headers={"Content-Type": "application/json"}), 400)
        body = {"model_id": json_model.id, "seq_id": json_model.next(), f"{endpoint}_input": {"data": [{}]}}
        done = w.wire.result(w.wire.post(endpoint, body))
        assert is_user_error(done) and f"{endpoint}_input" in done["error"], done
    json_model.logprobs([ce(A)])


@item(40, 41, 42, 43, 63)
def cross_entropy(w):
    model = w.fresh()
    weights = [0.5, 1.0, 0.0, 2.0, 1.0, -0.25, 3.0]
    out = model.run([ce(A, weights), ce(B)])
    got = arrays(out)
    assert [len(x) for x in got] == [len(A) - 1, len(B) - 1]
    want = -sum(a * b for a, b in zip(weights, got[0])) - sum(got[1])
    assert abs(out.metrics["loss:sum"] - want) <= 1e-4 * max(1, abs(want)), (out.metrics["loss:sum"], want)
    assert all(name.count(":") == 1 for name in out.metrics)
    assert model.logprobs([ce(A, weights), ce(B)]) == got
    zero = model.run([ce(A, [0.0] * (len(A) - 1))])
    assert zero.metrics["loss:sum"] == 0 and len(arrays(zero)[0]) == len(A) - 1
    fresh = w.fresh()
    fresh.logprobs([ce(A)])
    assert fresh.step()["metrics"]["stepped:max"] == 0


@item(44)
def accumulation(w):
    one, two = w.fresh(), w.fresh()
    one.run([ce(A)])
    one.run([ce(B)])
    two.run([ce(A), ce(B)])
    one.step()
    two.step()
    close(one.logprobs([ce(A)])[0], two.logprobs([ce(A)])[0], 1e-6)


@item(45, 46)
def order_of_numbers(w):
    model = w.fresh()
    model.seq = 4
    second = model.send([ce(B)] * 3, seq=2)
    third = model.send([ce(A)] * 2, seq=3)
    step = model.send_step(seq=4)
    first = model.send([ce(A)], seq=1)
    for reply in (first, second, third, step):
        assert not isinstance(w.wire.result(reply), dict) or reply is step
    straight = w.fresh()
    straight.run([ce(A)])
    straight.run([ce(B)] * 3)
    straight.run([ce(A)] * 2)
    straight.step()
    assert model.logprobs([ce(A)]) == straight.logprobs([ce(A)])


@item(47, 48)
def duplicates(w):
    model = w.fresh()
    one = model.send([ce(A)], seq=1).json()
    assert model.send([ce(A)], seq=1).json() == one
    status(model.send([ce(B)], seq=1), 409)
    w.wire.result(one)
    assert model.send([ce(A)], seq=1).json() == one


@item(49)
def bad_numbers(w):
    for seq in (0, -1):
        status(w.model.send([ce(A)], seq=seq), 400)
        status(w.model.send_step(seq=seq), 400)


@item(50)
def refusals_use_numbers_up(w):
    model = w.fresh()
    status(model.send_step(learning_rate=-1), 400)
    status(model.send_step(beta1=None), 400)
    status(model.op("save_weights", path="../x"), 400)
    status(model.op("load_weights", path=f"tinker://{model.id}/weights/x", weights_access_token="x"), 400)
    status(model.op("load_weights", path="nowhere"), 400)
    model.logprobs([ce(A)])


@item(52)
def unknown_model(w):
    w.model.id, keep = "nothing:train:0", w.model.id
    reply = w.model.send([ce(A)], seq=1)
    w.model.id = keep
    status(reply, 404)


@item(54, 55, 56, 57, 58, 61, 68)
def faults_of_data(w):
    n = len(A) - 1
    ints, floats = pb.DTYPE_INT64, pb.DTYPE_FLOAT32
    good = {"target_tokens": dense(A[1:], ints, [n]), "weights": dense([1.0] * n, floats, [n])}

    def bad(**changes):
        inputs = {**good, **changes}
        return datum(A[:-1], **{k: v for k, v in inputs.items() if v is not None})
    image = pb.Datum()
    image.model_input.add().image.data = b"x"
    none = pb.Datum()
    none.model_input.add()
    cases = [
        bad(target_tokens=dense(A[1:-1], ints)), bad(weights=dense([1.0] * (n + 1), floats)),
        bad(target_tokens=dense(A[1:], ints, [n + 1])), bad(weights=pb.Tensor(dense=b"abc", dtype=floats)),
        bad(weights=None), bad(target_tokens=None), bad(extra=dense([1.0], floats)),
        bad(weights=dense([1] * n, ints)), bad(target_tokens=dense([1.0] * n, floats)),
        bad(target_tokens=dense([10 ** 6] * n, ints)), bad(target_tokens=dense([-5] * n, ints)),
        bad(weights=dense([float("nan")] * n, floats)), bad(weights=dense([float("inf")] * n, floats)),
        datum([]), datum([10 ** 6] * n, **good), datum([-1] * n, **good), ce([1] * 100_000), image, none,
        bad(weights=sparse([1.0], [0, 1], [0], floats, [n, 2])),
        bad(weights=sparse([1.0, 1.0], [0, 2, 1] + [2] * (n - 2), [0, 0], floats, [n, 1])),
        bad(weights=sparse([1.0], [0] + [1] * n, [7], floats, [n, 2])),
        bad(weights=sparse([1.0], [0] + [2] * n, [0], floats, [n, 2])),
    ]
    model = w.fresh()
    for i, case in enumerate(cases):
        done = model.run([ce(A), case])
        assert is_user_error(done), (i, done)
        assert "1" in done["error"], (i, done)
    assert is_user_error(model.run([]))
    model.logprobs([ce(A)])
    for where in ("logprobs", "advantages"):
        values = {"logprobs": [-1.0] * n, "advantages": [1.0] * n, where: [float("nan")] * n}
        assert is_user_error(model.run([rl(A, **values)], loss="importance_sampling"))


@item(59, 124)
def rl_losses(w):
    model = w.fresh()
    lp = model.logprobs([ce(A)])[0]
    q = [x - 0.1 * (i - 3) for i, x in enumerate(lp)]
    adv = [1.0, -1.0, 0.5, 0.0, 2.0, -0.5, 1.0]
    r = [math.exp(a - b) for a, b in zip(lp, q)]

    def loss(name, config=None, **more):
        out = model.run([rl(A, q, adv, **more)], loss=name, config=config)
        assert not isinstance(out, dict), out
        return out.metrics["loss:sum"]
    near = lambda a, b: abs(a - b) <= 1e-4 * max(1.0, abs(b))
    clip = lambda x, lo, hi: min(max(x, lo), hi)
    assert near(loss("importance_sampling"), -sum(x * a for x, a in zip(r, adv)))
    assert near(loss("ppo"), -sum(min(x * a, clip(x, .8, 1.2) * a) for x, a in zip(r, adv)))
    assert near(loss("cispo"), -sum(clip(x, 0, 4) * p * a for x, p, a in zip(r, lp, adv)))
    assert near(loss("dro", {"beta": 0.05}),
                -sum(p * a - .025 * (p - b) ** 2 for p, b, a in zip(lp, q, adv)))
    mask = dense([1.0] * len(q), pb.DTYPE_FLOAT32, [len(q)])
    s = math.exp(sum(a - b for a, b in zip(lp, q)) / len(q))
    assert near(loss("gspo", sequence_ratio_mask=mask),
                -sum(min(s * a, clip(s, .9997, 1.0004) * a) for a in adv))
    assert is_user_error(model.run([rl(A, q, adv)], loss="dro"))
    assert is_user_error(model.run([rl(A, q, adv)], loss="ppo", config={"beta": 1.0}))
    assert is_user_error(model.run([rl(A, q, adv)], loss="custom"))


@item(60)
def many_targets(w):
    n, k = len(A) - 1, 3
    targets = [t for x in A[1:] for t in (x, x + 1, 0)]
    weights = [v for _ in range(n) for v in (0.5, 0.25, 0.0)]
    ints, floats = pb.DTYPE_INT64, pb.DTYPE_FLOAT32
    flat = datum(A[:-1], target_tokens=dense(targets, ints, [n, k]), weights=dense(weights, floats, [n, k]))
    crow = [2 * i for i in range(n + 1)]
    csr = datum(A[:-1],
                target_tokens=sparse([t for x in A[1:] for t in (x, x + 1)], crow, [0, 1] * n, ints, [n, k]),
                weights=sparse([.5, .25] * n, crow, [0, 1] * n, floats, [n, k]))
    model = w.fresh()
    out = model.run([flat, csr, ce(A)])
    assert not isinstance(out, dict), out
    assert list(out.loss_fn_outputs[0].fields["logprobs"].trailing_shape) == [k]
    one, two, plain = arrays(out)
    assert one == two and len(one) == n * k and one[0::k] == plain
    assert [r.num_datums for r in out.loss_fn_outputs] == [2, 1]


@item(62)
def negative_weights(w):
    model = w.fresh()
    weights = [0.25, -0.5, 0.125, 3.0, -1.0, 0.75, 0.5]
    model.run([ce(A, weights)])
    norm = model.step(learning_rate=0.0)["metrics"]["grad_norm:mean"]
    model.run([ce(A, [-x for x in weights])])
    assert model.step(learning_rate=0.0)["metrics"]["grad_norm:mean"] == norm > 0
    model.run([ce(A, weights), ce(A, [-x for x in weights])])
    assert model.step(learning_rate=0.0)["metrics"]["grad_norm:mean"] < 1e-3 * norm


@item(65, 66, 67)
def steps(w):
    model = w.fresh()
    before = model.logprobs([ce(A)])
    done = model.step(weight_decay=0.5)
    assert isinstance(done["metrics"], dict) and all(math.isfinite(v) for v in done["metrics"].values())
    assert model.logprobs([ce(A)]) == before
    model.run([ce(A)])
    norm = model.step(grad_clip_norm=1e-3)["metrics"]["grad_norm:mean"]
    assert norm > 0 and model.step()["metrics"]["stepped:max"] == 0


@item(57, 66)
def gradients_that_overflow(w):
    """Finite inputs whose ratio is infinite: the step is refused, the model stays what it was."""
    model = w.fresh()
    before = model.logprobs([ce(A)])
    n = len(A) - 1
    assert not isinstance(model.run([rl(A, [-1e30] * n, [1.0] * n)], loss="importance_sampling"), dict)
    done = model.step()
    assert is_user_error(done) and "gradient" in done["error"], done
    assert model.logprobs([ce(A)]) == before and model.step()["metrics"]["stepped:max"] == 0
    model.run([ce(A)])
    assert model.step()["metrics"]["optimizer_step:max"] == 1


@item(69, 70, 71, 87)
def sampling_sessions(w):
    model = w.fresh()
    path = model.save("s", "save_weights_for_sampler")["path"]
    number = next(w.samplers)
    one = w.wire.sampler(w.session, number, model_path=path)
    assert w.wire.sampler(w.session, number, model_path=path) == one
    w.sampled(A, w.sampler(model_path=path, base_model="tiny"))
    info = w.wire.get(f"samplers/{one}").json()
    assert info["base_model"] == "tiny" and info["model_path"] == path and info["sampler_id"] == one

    def create(wire, session, text):
        return wire.post("create_sampling_session", {
            "session_id": session, "sampling_session_seq_id": next(w.samplers), "model_path": text})
    status(create(w.wire, w.session, path + "x"), 404)
    status(create(w.wire, w.session, "tinker://a/b"), 400)
    status(create(w.other, w.other.session(), path), 403, 404)


@item(72, 73)
def ephemeral_samplers(w):
    model = w.fresh()
    model.run([ce(A)])
    model.step(learning_rate=1e-2)
    done = w.wire.result(model.op("save_weights_for_sampler", sampling_session_seq_id=next(w.samplers)))
    sampler = done["sampling_session_id"]
    ask = lambda: unpack("f", w.sampled(A, sampler, max_tokens=1, prompt_logprobs=True).prompt_logprobs)[1:]
    before = ask()
    assert before == model.logprobs([ce(A)])[0]
    model.run([ce(B)])
    model.step(learning_rate=1e-2)
    assert ask() == before and model.logprobs([ce(A)])[0] != before
    listed = w.wire.get(f"training_runs/{model.id}/checkpoints").json()["checkpoints"]
    assert listed == []


@item(74, 109, 84)
def samples(w):
    seq = 10 ** 18
    reply = w.wire.sample(w.base, seq, A, count=3, params={"stop": []}).json()
    assert len(set(reply["sample_sequence_ids"])) == 3
    assert w.wire.sample(w.base, seq, A, count=3, params={"stop": []}).json() == reply
    out = pb.SampleResponse.FromString(w.wire.result(reply))
    assert len(out.sequences) == 3
    for sequence in out.sequences:
        assert len(unpack("i", sequence.tokens)) == len(unpack("f", sequence.logprobs)) == 4


@item(75)
def reproducible(w):
    def tokens(**params):
        out = w.sampled(A, max_tokens=12, count=2, params={"stop": [], **params})
        return [unpack("i", s.tokens) for s in out.sequences]
    greedy = tokens(temperature=0.0)
    assert greedy[0] == greedy[1] == tokens(temperature=0.0)[0]
    seeded = tokens(seed=7, temperature=1.5)
    assert seeded == tokens(seed=7, temperature=1.5) and seeded[0] != seeded[1]
    # What is known of a prompt is not read again, and only its own tenant finds it.
    prompt = [random.randrange(100) for _ in range(200)]
    def whole(wire, sampler):
        return wire.sampled(sampler, next(w.seq), prompt, max_tokens=12, params={"stop": [], "seed": 7})
    first, again = whole(w.wire, w.base), whole(w.wire, w.base)
    other = whole(w.other, w.other.sampler(w.other.session(), 0, base_model="tiny"))
    assert [r.prompt_cache_hit_tokens for r in (first, again, other)] == [0, 192, 0], (first, again, other)
    assert first.sequences == again.sequences == other.sequences


@item(76, 122)
def stops(w):
    free = w.sampled(A, max_tokens=8, params={"temperature": 0.0, "stop": []}).sequences[0]
    tokens = unpack("i", free.tokens)
    assert len(tokens) == 8 and free.stop_reason == pb.STOP_REASON_LENGTH
    cut = w.sampled(A, max_tokens=8, params={"temperature": 0.0, "stop": [tokens[2]]}).sequences[0]
    end = tokens.index(tokens[2]) + 1
    assert unpack("i", cut.tokens) == tokens[:end] and cut.stop_reason == pb.STOP_REASON_STOP
    for stop in ("zzzzqqqq", ["zzzzqqqq", "yyyyqqqq"]):
        w.sampled(A, params={"stop": stop})


@item(77, 79, 80, 81, 118, 121)
def logprobs(w):
    out = w.sampled(A, max_tokens=4, params={"stop": [], "seed": 3}, prompt_logprobs=True, topk_prompt_logprobs=5,
                    topk_sample_logprobs=2)
    prompt = unpack("f", out.prompt_logprobs)
    assert len(prompt) == len(A) and math.isnan(prompt[0])
    model = w.fresh()
    sequence = A + unpack("i", out.sequences[0].tokens)
    trained = model.logprobs([ce(sequence)])[0]
    close(prompt[1:], trained[:len(A) - 1], 1e-5)
    close(unpack("f", out.sequences[0].logprobs), trained[len(A) - 1:], 1e-5)
    table = out.topk_prompt_logprobs
    values, ids = unpack("f", table.logprobs), unpack("i", table.token_ids)
    assert table.k == 5 and table.length == len(A) and values[0] == struct_float(-99999.0) and ids[0] == 0
    for row in range(1, len(A)):
        part = values[row * 5:row * 5 + 5]
        assert part == sorted(part, reverse=True)
        if A[row] in ids[row * 5:row * 5 + 5]:
            assert abs(values[row * 5 + ids[row * 5:row * 5 + 5].index(A[row])] - prompt[row]) < 1e-5
    topk = out.sequences[0].topk_sampled_logprobs
    assert topk.k == 2 and topk.length == 4
    one = unpack("f", w.sampled([5], max_tokens=1, prompt_logprobs=True).prompt_logprobs)
    assert len(one) == 1 and math.isnan(one[0])
    last = unpack("f", w.sampled(A, max_tokens=1, prompt_logprobs=True, prompt_logprobs_last_n=2).prompt_logprobs)
    assert all(math.isnan(x) for x in last[:-2]) and last[-2:] == prompt[-2:]
    for more in ({"prompt_logprobs_last_n": 0, "prompt_logprobs": True}, {"prompt_logprobs_last_n": 1},
                 {"prompt_logprobs_last_n": -1, "prompt_logprobs": True},
                 {"prompt_logprobs_last_n": len(A), "prompt": A, "prompt_logprobs": True}):
        w.refused(**more)


def struct_float(value):
    import struct
    return struct.unpack("<f", struct.pack("<f", value))[0]


@item(78)
def truncation(w):
    greedy = unpack("i", w.sampled(A, max_tokens=6, params={"temperature": 0.0, "stop": []}).sequences[0].tokens)
    for params in ({"top_k": 1}, {"top_p": 1e-6}):
        got = w.sampled(A, max_tokens=6, params={"stop": [], **params}).sequences[0]
        assert unpack("i", got.tokens) == greedy, params
    one = w.sampled(A, params={"seed": 5, "stop": [], "top_k": -1, "top_p": 1.0}).sequences[0]
    assert one.tokens == w.sampled(A, params={"seed": 5, "stop": []}).sequences[0].tokens


@item(82, 83)
def bad_samples(w):
    assert "context window" in w.refused(max_tokens=10 ** 7)
    w.refused(prompt=[1] * 100_000)
    w.refused(prompt=[])
    w.refused(prompt=[-1])
    w.refused(prompt=[10 ** 7])
    for more in ({"max_tokens": 0}, {"max_tokens": -1}, {"count": 0}, {"count": 2000}, {"params": {"temperature": -1}},
                 {"params": {"top_p": 0}}, {"params": {"top_p": 1.5}}, {"params": {"top_k": -2}},
                 {"params": {"stop": ["x"] * 65}}, {"params": {"stop": ["x" * 2000]}}, {"topk_prompt_logprobs": -1}):
        w.refused(**more)


@item(86)
def dead_samplers(w):
    assert "nothing" in status(w.wire.sample("nothing", 0, A), 404, 400).text
    session = w.wire.session()
    sampler = w.wire.sampler(session, 0, base_model="tiny")
    w.wire.ok(f"sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None})
    status(w.wire.sample(sampler, 0, A), 404, 400)


@item(88, 117, 90, 89, 93, 94, 95, 98)
def checkpoints(w):
    model = w.fresh(user_metadata={"renderer_name": "r"})
    path = model.save("one", user_metadata={"a": "b"}, ttl_seconds=3600)["path"]
    assert path == f"tinker://{model.id}/weights/one"
    run = w.wire.get(f"training_runs/{model.id}").json()
    assert run["last_checkpoint"]["tinker_path"] == path and run["user_metadata"] == {"renderer_name": "r"}
    row = w.wire.get(f"training_runs/{model.id}/checkpoints").json()["checkpoints"][0]
    assert row["checkpoint_id"] == "weights/one" and row["size_bytes"] > 0 and row["expires_at"].endswith("Z")
    assert row["user_metadata"] == {"a": "b"}
    assert is_user_error(model.save("one"))
    assert model.save("one", overwrite=True)["path"] == path
    rows = w.wire.get(f"training_runs/{model.id}/checkpoints").json()["checkpoints"]
    assert len(rows) == 1 and not rows[0].get("user_metadata")
    for name in ("../x", "a/b", "", "x" * 300, ".."):
        status(model.op("save_weights", path=name), 400)
    info = w.wire.ok("weights_info", {"tinker_path": path})
    assert info["lora_rank"] == 4 and info["train_mlp"] is True and info["base_model"] == "tiny"
    url = f"training_runs/{model.id}/checkpoints/weights/one"
    assert w.wire.http.put(url + "/ttl", json={"ttl_seconds": 60}).status_code // 100 == 2
    assert w.wire.http.put(url + "/ttl", json={"ttl_seconds": None}).status_code // 100 == 2
    assert not w.wire.get(f"training_runs/{model.id}/checkpoints").json()["checkpoints"][0].get("expires_at")
    sampler_path = model.save("gone", "save_weights_for_sampler", ttl_seconds=1)["path"]
    sampler = w.sampler(model_path=sampler_path)
    assert wait_until(lambda: len(w.wire.get(f"training_runs/{model.id}/checkpoints").json()["checkpoints"]) == 1, 5)
    w.sampled(A, sampler)
    assert w.wire.http.delete(url).status_code // 100 == 2
    status(w.wire.http.delete(url), 404)
    status(w.wire.post("weights_info", {"tinker_path": path}), 404)
    runs = w.wire.get("training_runs?limit=3").json()
    assert runs["cursor"]["total_count"] >= 3 and len(runs["training_runs"]) == 3


@item(91, 111)
def resume(w):
    model = w.fresh()
    for tokens in (A, B):
        model.run([ce(tokens)])
        model.step()
    path = model.save("state")["path"]
    number = next(w.numbers)
    form = {"session_id": w.session, "model_seq_id": number, "path": path, "optimizer": True,
            "user_metadata": {"x": "y"}, "type": "load_weights"}
    reply = w.wire.post("load_weights", form)
    assert w.wire.post("load_weights", form).json() == reply.json()
    copy = type(model)(w.wire, w.wire.result(reply)["model_id"])
    assert copy.id == f"{w.session}:train:{number}"
    assert w.wire.ok("get_info", {"model_id": copy.id})["lora_rank"] == 4
    assert copy.logprobs([ce(A)]) == model.logprobs([ce(A)])
    for m in (copy, model):
        m.run([ce(A)])
        m.step()
    assert copy.logprobs([ce(A)]) == model.logprobs([ce(A)])
    plain = w.fresh(seed=9)
    w.wire.result(plain.op("load_weights", path=path, optimizer=False))
    plain.run([ce(A)])
    plain.step()
    assert plain.logprobs([ce(A)]) != model.logprobs([ce(A)])


@item(92)
def bad_loads(w):
    model = w.fresh()
    sampler_path = model.save("s", "save_weights_for_sampler")["path"]
    path = model.save("t")["path"]
    before = model.logprobs([ce(A)])
    for text in (path + "x", sampler_path):
        reply = model.op("load_weights", path=text, optimizer=True)
        assert reply.status_code in (400, 404) or is_user_error(w.wire.result(reply))
    other = w.fresh(rank=8)
    reply = other.op("load_weights", path=path, optimizer=True)
    assert reply.status_code == 400 or is_user_error(w.wire.result(reply))
    status(w.wire.post("load_weights", {"session_id": w.session, "model_seq_id": next(w.numbers), "path": path,
                                        "optimizer": True, "base_model": "no/such"}), 400)
    assert model.logprobs([ce(A)]) == before


@item(96)
def archives(w):
    import io
    import tarfile
    model = w.fresh()
    model.save("arc", "save_weights_for_sampler")
    reply = w.wire.get(f"training_runs/{model.id}/checkpoints/sampler_weights/arc/archive")
    url = reply.json()["url"] if reply.status_code == 200 else reply.headers["location"]
    data = httpx.get(url)
    assert data.status_code == 200 and int(data.headers["content-length"]) == len(data.content)
    names = tarfile.open(fileobj=io.BytesIO(data.content)).getnames()
    assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"} <= set(names), names
    status(httpx.get(url[:-4] + "AAAA"), 404)


@item(99)
def foreign_checkpoints(w):
    model = w.fresh()
    path = model.save("mine")["path"]
    url = f"training_runs/{model.id}/checkpoints/weights/mine"
    status(w.other.get(f"training_runs/{model.id}"), 404)
    status(w.other.http.delete(url), 404)
    status(w.other.post(url + "/publish", {}), 404)
    status(w.other.post("weights_info", {"tinker_path": path}), 404)
    assert all(r["training_run_id"] != model.id for r in w.other.get("training_runs").json()["training_runs"])
    assert w.wire.post(url + "/publish", {}).status_code // 100 == 2
    assert w.other.post("weights_info", {"tinker_path": path}).status_code == 200
    status(w.other.http.delete(url), 404)


@item(101, 103)
def bad_json(w):
    head = {"Content-Type": "application/json"}
    for body in (b"{", b"[1]", b"nul", b"[" * 100_000, b"\xff"):
        status(w.wire.http.post("create_session", content=body, headers=head), 400, 422)
    status(w.wire.post("create_session", {"tags": 5}), 400, 422)
    status(w.wire.get("no/such/route"), 404)
    status(w.wire.http.put("create_session", json={}), 405)
    status(w.wire.http.post("create_session", content=b"{}", headers={"Content-Type": "text/plain"}), 415)


@item(107)
def content_length(w):
    reply = httpx.get(w.url + "/api/v1/healthz", headers={"Connection": "close"})
    assert int(reply.headers["content-length"]) == len(reply.content) and reply.headers["connection"] == "close"


@item(108)
def two_tenants(w):
    def train(wire, go):
        model = wire.model(wire.session())
        replies = []
        for tokens in (A, B, A):
            replies += [model.send([ce(tokens)]), model.send_step()]
            go()
        for reply in replies:
            wire.result(reply)
        return model.logprobs([ce(B)])
    alone = train(w.wire, lambda: None)
    rival = w.other.model(w.other.session())
    beside = train(w.wire, lambda: rival.send([ce(B), ce(A)]))
    assert alone == beside


@item(112)
def finishing(w):
    session = w.wire.session()
    model = w.wire.model(session)
    path = model.save("kept")["path"]
    for reason in ("success", "errored"):
        done = w.wire.ok(f"sessions/{session}/finish", {"reason": {"type": reason}, "detail": None})
        assert done["reason"]["type"] == "success"
    status(w.wire.post("session_heartbeat", {"session_id": session}), 410)
    status(model.send([ce(A)]), 400, 404)
    status(w.wire.create(session, 5), 400, 404)
    status(w.wire.post("create_sampling_session", {"session_id": session, "sampling_session_seq_id": 5,
                                                   "base_model": "tiny"}), 400, 404)
    status(w.wire.post("sessions/nothing/finish", {"reason": {"type": "success"}}), 404)
    w.wire.result(w.wire.post("load_weights", {"session_id": w.session, "model_seq_id": next(w.numbers),
                                               "path": path, "optimizer": True}))


@item(113)
def copies(w):
    model = w.fresh()
    path = model.save("src")["path"]
    head = {"X-Idempotency-Key": "11111111-2222"}
    reply = w.wire.post("copy_weights", {"source_path": path, "destination_project_id": "default"}, headers=head)
    if reply.status_code == 200:
        assert w.wire.post("copy_weights", {"source_path": path, "destination_project_id": "default"},
                           headers=head).json() == reply.json()
        w.wire.http.delete(f"training_runs/{model.id}/checkpoints/weights/src")
        assert w.wire.post("weights_info", {"tinker_path": reply.json()["tinker_path"]}).status_code == 200
    else:
        status(reply, 400, 404)


@item(114)
def external(w):
    model = w.fresh()
    done = model.save("out", "save_weights_external", ttl_seconds=600)
    assert done["path"].endswith("/external_weights/out"), done
    url = f"training_runs/{model.id}/checkpoints/external_weights/out"
    files = w.wire.get(url + "/external_weights_urls").json()
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(files["urls"])
    for link in files["urls"].values():
        data = httpx.get(link)
        assert data.status_code == 200 and int(data.headers["content-length"]) == len(data.content)
    kinds = lambda wire: [c["checkpoint_type"] for c in wire.get(f"training_runs/{model.id}/checkpoints").json()["checkpoints"]]
    assert kinds(w.wire) == ["external"] and kinds(Wire(w.url, w.key_a, "0.27.2")) == []
    assert w.wire.http.put(url + "/ttl", json={"ttl_seconds": 60}).status_code // 100 == 2
    assert w.wire.http.delete(url).status_code // 100 == 2
    status(httpx.get(next(iter(files["urls"].values()))), 410)
    reply = model.op("save_weights_external", path="enc", age_encryption_recipients=["age1nonsense"])
    assert reply.status_code == 400 or is_user_error(w.wire.result(reply))
    good = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
    model.save("enc", "save_weights_external", age_encryption_recipients=[good])
    names = w.wire.get(f"training_runs/{model.id}/checkpoints/external_weights/enc/external_weights_urls").json()["urls"]
    assert names and all(name.endswith(".age") for name in names), names


@item(115, 116)
def other_optimizers(w):
    status(w.wire.post("create_model", {
        "session_id": w.session, "model_seq_id": next(w.numbers), "base_model": "tiny",
        "lora_config": {"rank": 4}, "optimizer_config": {"type": "dimuon", "version": 1}}), 400)
    model = w.fresh()
    status(model.op("optim_step", optimizer_params={"type": "dimuon", "learning_rate": 1.0}), 400)
    assert "inflight" in status(model.op("save_weights_for_sampler", path="x", kind="inflight"), 400).text
    model.save("x", "save_weights_for_sampler", kind="snapshot")


@item(119)
def target_logprobs(w):
    rows = len(A) - 1
    want = unpack("f", w.sampled(A, max_tokens=1, prompt_logprobs=True).prompt_logprobs)[1:]
    # The prompt's own next tokens in the second column; -1 asks for nothing.
    data = [cell for i in range(rows) for cell in (-1, A[i + 1], 7)]
    ask = {"data": data, "dtype": "int64", "shape": [rows, 3]}
    out = w.sampled(A, max_tokens=1, target_prompt_logprobs=ask)
    assert not out.prompt_logprobs
    got = out.target_prompt_logprobs
    values = unpack("f", got.dense)
    assert got.dtype == pb.DTYPE_FLOAT32 and list(got.shape) == [rows, 3]
    assert values[0::3] == [0.0] * rows and values[1::3] == want and all(v < 0 for v in values[2::3])
    # As CSR only two cells of one row: the same numbers, in the same layout.
    row = rows - 1
    crow, col = [0] * (row + 1) + [2], [2, 1]
    ask = {"data": [7, A[-1]], "dtype": "int64", "shape": [rows, 3], "sparse_crow_indices": crow, "sparse_col_indices": col}
    got = w.sampled(A, max_tokens=1, target_prompt_logprobs=ask).target_prompt_logprobs
    assert got.HasField("sparse_csr") and list(got.shape) == [rows, 3]
    assert unpack("q", got.sparse_csr.crow_indices) == crow and unpack("q", got.sparse_csr.col_indices) == col
    assert unpack("f", got.sparse_csr.values) == [values[3 * row + 2], values[3 * row + 1]]
    for bad in ({"data": [1], "dtype": "int64", "shape": [1, 1]}, {"data": [-1] * rows, "dtype": "int64", "shape": [rows, 1]},
                {"data": [1.0] * rows, "dtype": "float32", "shape": [rows, 1]}, {"data": [1] * rows, "dtype": "int64", "shape": [rows]}):
        detail = w.refused(prompt=A, target_prompt_logprobs=bad)
        assert "target_prompt_logprobs" in detail, detail


@item(120)
def alternative_tokens(w):
    rows, k = len(A) - 1, 4
    params = {"temperature": 0.7, "seed": 11}
    out = w.sampled(A, max_tokens=1, params=params, prompt_alt_tokens_k=k)
    tokens, logprobs = out.prompt_alt_tokens.tokens, out.prompt_alt_tokens.logprobs
    assert list(tokens.shape) == list(logprobs.shape) == [rows, k] and logprobs.dtype == pb.DTYPE_FLOAT32
    ids = unpack("i", tokens.dense)
    assert len(ids) == rows * k and len(set(ids)) > 1
    ask = {"data": ids, "dtype": "int64", "shape": [rows, k]}
    model = unpack("f", w.sampled(A, max_tokens=1, target_prompt_logprobs=ask).target_prompt_logprobs.dense)
    assert unpack("f", logprobs.dense) == model  # the model's, whatever the temperature
    again = w.sampled(A, max_tokens=1, params=params, prompt_alt_tokens_k=k, count=3).prompt_alt_tokens
    assert unpack("i", again.tokens.dense) == ids
    greedy = w.sampled(A, max_tokens=1, params={"temperature": 0}, prompt_alt_tokens_k=2, topk_prompt_logprobs=1)
    best = unpack("i", greedy.topk_prompt_logprobs.token_ids)[1:]
    assert unpack("i", greedy.prompt_alt_tokens.tokens.dense) == [b for b in best for _ in range(2)]
    assert "prompt_alt_tokens_k" in w.refused(prompt_alt_tokens_k=-1)
    assert "prompt_alt_tokens_k" in w.refused(prompt_alt_tokens_k=100_000)


@item(123)
def refused_fields(w):
    config = w.wire.ok("client/config", {})
    assert not config["sample_use_retrieve_futures"] and not config["sample_join_sampling_session"]


@item(123)
def cancelled_samples(w):
    assert w.wire.ok("client/dynamic_config", {})["sample_cancel_enabled"]
    cancel = lambda request: w.wire.post("cancel_future", {"request_id": request}).status_code
    long = w.wire.sample(w.base, next(w.seq), [1, 2], max_tokens=200, count=8, params={"stop": []}).json()["request_id"]
    assert cancel(long) == 204 and cancel("made-up") == 404
    answer = w.wire.poll(long).json()
    assert answer["category"] == "user" and "cancelled by its client" in answer["error"], answer
    assert cancel(long) == 204  # has ended
    step = w.model.wire.ok("optim_step", {"model_id": w.model.id, "seq_id": w.model.next(),
                                          "adam_params": {"learning_rate": 0.0}})["request_id"]
    assert cancel(step) in (204, 400) and "error" not in w.wire.poll(step).json()


def with_spans(data, prompt_size, sampled_size, sequence):
    """Spans of a datum made of a prompt and its sample, shifted by one."""
    for spans, lead in ((data.model_input_spans, prompt_size), (data.loss_fn_input_spans, prompt_size - 1)):
        offset = prompt_size - lead
        span = spans.add().prompt_tokens
        span.sequence_id, span.offset, span.length = sequence, offset, lead
        span = spans.add().sampled_tokens
        span.sequence_id, span.offset = sequence, 0
        span.length = sampled_size - (1 if lead == prompt_size else 0)
    return data


@item(124, 125, 127)
def stable_reinforce(w):
    model = w.fresh()
    sampler = w.wire.result(model.op("save_weights_for_sampler", sampling_session_seq_id=next(w.samplers)))
    reply = w.wire.sample(sampler["sampling_session_id"], 0, A, params={"stop": []}, record_stability_info=True).json()
    out = pb.SampleResponse.FromString(w.wire.result(reply))
    tokens, q = unpack("i", out.sequences[0].tokens), unpack("f", out.sequences[0].logprobs)
    sequence = reply["sample_sequence_ids"][0]
    whole = A + tokens
    n = len(whole) - 1
    adv = [0.0] * (len(A) - 1) + [1.0, -1.0, 0.5, 2.0]
    data = with_spans(rl(whole, [0.0] * n, adv), len(A), len(tokens), sequence)
    done = model.run([data], loss="stable_reinforce")
    assert not isinstance(done, dict), done
    lp = arrays(done)[0][-4:]
    want = -sum(min(math.exp(a - b), 2) * v * a for a, b, v in zip(lp, q, adv[-4:]))
    assert abs(done.metrics["loss:sum"] - want) < 1e-3, (done.metrics, want)
    assert done.metrics["stable_reinforce_strata_formula:max"] == 1
    assert is_user_error(model.run([rl(whole, [0.0] * n, adv)], loss="stable_reinforce"))
    wrong = with_spans(rl(whole, [0.0] * n, adv), len(A), len(tokens), sequence + "x")
    assert sequence + "x" in model.run([wrong], loss="stable_reinforce")["error"]
    plain = model.run([rl(whole, [-1.0] * n, adv)], loss="ppo").metrics["loss:sum"]
    spans = with_spans(rl(whole, [-1.0] * n, adv), len(A), len(tokens), sequence)
    assert model.run([spans], loss="ppo").metrics["loss:sum"] == plain


@item(126)
def config_v2(w):
    model = w.fresh()
    n = len(A) - 1

    def run(text):
        message = model.message([rl(A, [-1.0] * n, [1.0] * n)], "dro", model.next(), config={"beta": 1.0})
        if text:
            message.loss_fn_config_v2["beta"].text = "x"
        else:
            message.loss_fn_config_v2["beta"].number = 0.05
        done = w.wire.result(model.send_raw(message.SerializeToString()))
        return pb.ForwardBackwardOutput.FromString(done) if isinstance(done, bytes) else done
    one = run(False).metrics["loss:sum"]
    two = model.run([rl(A, [-1.0] * n, [1.0] * n)], loss="dro", config={"beta": 0.05}).metrics["loss:sum"]
    assert one == two and is_user_error(run(True))


@item(128)
def session_metadata(w):
    session = w.wire.session(display_name="name", user_metadata={"k": "v"})
    model = w.wire.model(session)
    row = w.wire.get(f"sessions/{session}").json()
    assert row["display_name"] == "name" and row["user_metadata"] == {"k": "v"}
    assert row["training_run_ids"] == [model.id]
    # Readers want a map of strings; a name may have 256 characters of any script.
    session = w.wire.session(display_name="\u5b57" * 256, user_metadata={"n": 5})
    row = w.wire.get(f"sessions/{session}").json()
    assert row["display_name"] == "\u5b57" * 256 and row["user_metadata"] == {"n": "5"}
    status(w.wire.post("create_session", {"display_name": "x" * 257}), 400)


@item(129, 130)
def service_only(w):
    for method, path in (("GET", "auth/apikey/me"), ("POST", "sessions/search"), ("GET", "audit"),
                         ("GET", "billing/usage/events"), ("POST", "create_custom_loss"), ("POST", "auth/token")):
        reply = w.wire.http.request(method, path, json={} if method == "POST" else None)
        assert reply.status_code < 500 and isinstance(reply.json(), dict), (path, reply.text)


@item(133)
def two_clients_of_a_sampler(w):
    sampler = w.sampler(base_model="tiny")
    for number in (5, 10 ** 9 + 5, 2 * 10 ** 9 + 5):
        w.wire.sampled(sampler, number, A)


def main():
    world = World(*sys.argv[1:4])
    only = {int(n) for n in sys.argv[5].split(",")} if len(sys.argv) > 5 else None
    passed, failed = set(), set()
    for numbers, test in TESTS:
        if only is not None and not only & set(numbers):
            continue
        start = time.monotonic()
        try:
            test(world)
            passed |= set(numbers)
            record(numbers, f"conformance.py {test.__name__}")
            print(f"ok    {test.__name__} {list(numbers)} {time.monotonic() - start:.2f} s", flush=True)
        except Exception:
            failed |= set(numbers)
            print(f"FAIL  {test.__name__} {list(numbers)}\n{traceback.format_exc(limit=-2)}", flush=True)
    passed -= failed
    print(f"conformance: {len(passed)} items passed, {len(failed)} failed {sorted(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
