# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, runs, downloads, tenants and restarts against a real server, driven by the official SDK.

Each item_NNN function is one statement of the protocol's conformance list; the number is its place there. Run
  python tests/e2e/state_items.py --strata build/strata --model models/tiny-qwen3 [item ...]
with a Python that has tinker; items that need pyrage or peft with torch are skipped, by name, without them.
"""
import argparse
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import warnings

os.environ["TINKER_TELEMETRY"] = "0"
warnings.simplefilter("ignore")
import tinker  # noqa: E402
from tinker import types  # noqa: E402
from wire import record  # noqa: E402

ALICE = "tml-alice-0123456789abcdef0123456789"
BOB = "tml-bob-9876543210fedcba9876543210"


class Skip(Exception):
    pass


class Server:
    """One strata serve on a free port, with a data directory that outlives its process."""

    def __init__(self, strata, model, folder, options=()):
        self.strata, self.model, self.folder = strata, os.path.abspath(model), pathlib.Path(folder)
        self.options, self.process, self.url = list(options), None, ""
        self.log = open(self.folder / "log", "ab")
        keys = self.folder / "keys"
        keys.write_text(f"{ALICE} alice\n{BOB} bob\n")
        keys.chmod(0o600)

    def start(self):
        command = [self.strata, "serve", "--model", f"tiny={self.model}", "--data", str(self.folder / "data"),
                   "--keys", str(self.folder / "keys"), "--listen", "127.0.0.1:0",
                   "--metrics-listen", "127.0.0.1:0", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, "STRATA_LOG": "3"})
        for line in self.process.stdout:
            if "listening on http://" in line:
                self.url = line[line.index("http://"):].split()[0]
                return
        raise AssertionError(f"the server did not start: {self.log.name}")

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code

    def call(self, method, path, key=ALICE, body=None, headers=()):
        """Status, JSON (or bytes) and headers of one request."""
        url = path if path.startswith("http") else f"{self.url}/api/v1/{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, method=method)
        if key:
            request.add_header("X-API-Key", key)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in headers:
            request.add_header(name, value)
        try:
            reply = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            reply = error
        content = reply.read()
        if "json" in reply.headers.get("Content-Type", ""):
            content = json.loads(content)
        return reply.status, content, reply.headers

    def ok(self, method, path, key=ALICE, body=None, headers=()):
        status, content, _ = self.call(method, path, key, body, headers)
        assert status == 200, f"{method} {path}: {status} {content}"
        return content

    def poll(self, request_id, key=ALICE):
        while True:
            status, content, _ = self.call("POST", "retrieve_future", key, {"request_id": request_id})
            if status != 408:
                return status, content

    def future(self, path, key=ALICE, body=None):
        """Submits, waits, and returns the final JSON."""
        request = self.ok("POST", path, key, body)["request_id"]
        status, content = self.poll(request, key)
        assert status == 200, f"{path}: {status} {content}"
        return content

    def service(self, key=ALICE, **more):
        return tinker.ServiceClient(base_url=self.url, api_key=key, **more)

    def rest(self, key=ALICE):
        return tinker.RestClient(base_url=self.url, api_key=key)


class Raw:
    """A session and a model of one tenant, by plain requests: no heartbeat, numbers by hand."""

    def __init__(self, server, key=ALICE, rank=8, **more):
        self.server, self.key, self.seq = server, key, 0
        self.session = server.ok("POST", "create_session", key, {"tags": [], "sdk_version": "0.38.0"})["session_id"]
        made = server.future("create_model", key, {
            "session_id": self.session, "model_seq_id": 0, "base_model": "tiny",
            "lora_config": {"rank": rank, "seed": 7, "train_unembed": False, "train_mlp": True, "train_attn": True},
            **more})
        self.model = made["model_id"]

    def submit(self, endpoint, /, **body):
        self.seq += 1
        return self.server.call("POST", endpoint, self.key, {"model_id": self.model, "seq_id": self.seq, **body})

    def run(self, endpoint, /, **body):
        status, content, _ = self.submit(endpoint, **body)
        assert status == 200, f"{endpoint}: {status} {content}"
        status, content = self.server.poll(content["request_id"], self.key)
        assert status == 200, f"{endpoint}: {status} {content}"
        return content

    def save(self, name, endpoint="save_weights", /, **body):
        return self.run(endpoint, path=name, **body)

    def sampler(self, number, **body):
        return self.server.call("POST", "create_sampling_session", self.key,
                                {"session_id": self.session, "sampling_session_seq_id": number, **body})

    def sample(self, sampler, seq):
        status, content, _ = self.server.call("POST", "asample", self.key, {
            "sampling_session_id": sampler, "seq_id": seq, "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 3, "temperature": 0.0}})
        if status != 200:
            return status, content
        return self.server.poll(content["request_id"], self.key)


def datum(tokens=(1, 2, 3, 4, 5)):
    inputs, targets = list(tokens[:-1]), list(tokens[1:])
    count = len(inputs)
    return types.Datum(
        model_input=types.ModelInput.from_ints(inputs),
        loss_fn_inputs={"target_tokens": types.TensorData(data=targets, dtype="int64", shape=[count]),
                        "weights": types.TensorData(data=[1.0] * count, dtype="float32", shape=[count])})


def train(client, steps=2):
    for _ in range(steps):
        client.forward_backward([datum()], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()


def logprobs(client):
    return list(client.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data)


def wanted(status, *expected):
    assert status in expected, f"status {status}, wanted {expected}"


# Checkpoints and runs

def item_088_a_save_is_listed_with_its_size(s):
    raw = Raw(s)
    path = raw.save("a")["path"]
    assert path == f"tinker://{raw.model}/weights/a"
    run = s.ok("GET", f"training_runs/{raw.model}")
    assert run["last_checkpoint"]["tinker_path"] == path and run["last_checkpoint"]["size_bytes"] > 1000
    assert [c["tinker_path"] for c in s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]] == [path]
    assert s.ok("GET", "checkpoints?limit=1")["checkpoints"][0]["tinker_path"] == path


def item_089_a_used_name_needs_overwrite(s):
    raw = Raw(s)
    raw.save("a", user_metadata={"n": "1"})
    refused = raw.save("a", overwrite=False)
    assert refused["category"] == "user" and "already exists" in refused["error"], refused
    raw.save("a", overwrite=True)
    listed = s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]
    assert len(listed) == 1 and "user_metadata" not in listed[0], listed


def item_090_bad_names_are_refused(s):
    raw = Raw(s)
    for name in ("../x", "a/b", "", "x" * 300, "..", "a b", "\u00e9"):
        for path in ("save_weights", "save_weights_for_sampler", "save_weights_external"):
            status, content, _ = raw.submit(path, path=name)
            wanted(status, 400)
            assert "path" in json.dumps(content)
    raw.save("x" * 255)


def item_091_from_state_restores_exactly(s):
    with s.service() as service:
        first = service.create_lora_training_client(base_model="tiny", rank=8).result()
        train(first)
        path = first.save_state("a").result().path
        before = logprobs(first)
        train(first, 1)
        after = logprobs(first)
        plain = service.create_training_client_from_state(path).result()
        assert logprobs(plain) == before
        whole = service.create_training_client_from_state_with_optimizer(path).result()
        assert logprobs(whole) == before
        train(whole, 1)
        assert logprobs(whole) == after
        train(plain, 1)
        assert logprobs(plain) != after


def item_092_loads_that_cannot_be_are_user_errors(s):
    raw = Raw(s)
    raw.save("s", "save_weights_for_sampler")
    other = Raw(s, rank=16)
    wide = other.save("w")["path"]
    for path in (f"tinker://{raw.model}/weights/none", f"tinker://{raw.model}/sampler_weights/s", wide):
        refused = raw.run("load_weights", path=path, optimizer=False)
        assert refused["category"] == "user", refused
    raw.save("still-works")


def item_093_weights_info_is_as_created(s):
    info = s.ok("POST", "weights_info", body={"tinker_path": Raw(s).save("a")["path"]})
    assert (info["base_model"], info["lora_rank"], info["train_unembed"], info["train_mlp"]) == ("tiny", 8, False, True)
    wanted(s.call("POST", "weights_info", body={"tinker_path": "tinker://nobody/weights/a"})[0], 404)


def item_094_a_ttl_ends_a_checkpoint(s):
    raw = Raw(s)
    path = raw.save("brief", ttl_seconds=1)["path"]
    raw.save("long", ttl_seconds=3600)
    shown = s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]
    assert all("expires_at" in c for c in shown)
    s.ok("PUT", f"training_runs/{raw.model}/checkpoints/weights/long/ttl", body={"ttl_seconds": None})
    time.sleep(1.1)
    left = s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]
    assert [c["checkpoint_id"] for c in left] == ["weights/long"] and "expires_at" not in left[0]
    wanted(s.call("POST", "weights_info", body={"tinker_path": path})[0], 404)
    for ttl in (0, -1, 315_360_001):
        wanted(raw.submit("save_weights", path="x", ttl_seconds=ttl)[0], 400)


def item_095_a_deleted_checkpoint_keeps_its_samplers(s):
    raw = Raw(s)
    for kind, path in (("weights", "save_weights"), ("sampler_weights", "save_weights_for_sampler")):
        raw.save("d", path)
    status, made, _ = raw.sampler(0, model_path=f"tinker://{raw.model}/sampler_weights/d")
    wanted(status, 200)
    before = raw.sample(made["sampling_session_id"], 0)
    for kind in ("weights", "sampler_weights"):
        target = f"training_runs/{raw.model}/checkpoints/{kind}/d"
        s.ok("DELETE", target)
        wanted(s.call("DELETE", target)[0], 404)
    wanted(s.call("DELETE", f"training_runs/{raw.model}/checkpoints/d")[0], 400)
    time.sleep(6)  # a sweep has passed
    assert raw.sample(made["sampling_session_id"], 1) == before
    wanted(raw.sampler(1, model_path=f"tinker://{raw.model}/sampler_weights/d")[0], 404)


def item_096_an_archive_needs_no_headers(s):
    raw = Raw(s)
    raw.save("a", "save_weights_for_sampler")
    answer = s.ok("GET", f"training_runs/{raw.model}/checkpoints/sampler_weights/a/archive")
    status, content, headers = s.call("GET", answer["url"], key=None)
    wanted(status, 200)
    assert int(headers["Content-Length"]) == len(content) and headers["Cache-Control"] == "no-store"
    members = tarfile.open(fileobj=io.BytesIO(content)).getmembers()
    assert all(m.isreg() for m in members)
    names = {m.name for m in members}
    assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"} <= names, names
    wanted(s.call("GET", answer["url"] + "x", key=None)[0], 404)


def item_097_peft_gives_the_servers_logprobs(s):
    try:
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise Skip(f"{error.name} is not installed") from error
    base = AutoModelForCausalLM.from_pretrained(s.model, dtype=torch.float32)
    tokens = [1, 2, 3, 4, 5]
    with s.service() as service:
        for unembed in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                client = service.create_lora_training_client(
                    base_model="tiny", rank=8, train_unembed=unembed).result()
                train(client, 3)
                fetch_external(s, client.save_weights_external("e").result().path, folder)
                config = json.loads(pathlib.Path(folder, "adapter_config.json").read_text())
                assert (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"],
                        config["bias"]) == ("LORA", "CAUSAL_LM", 8, 32, "none"), config
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", message=".*missing.*")
                    model = PeftModel.from_pretrained(base, folder)
                with torch.no_grad():
                    rows = torch.log_softmax(model(torch.tensor([tokens[:-1]])).logits[0], -1)
                base = model.unload()
            theirs = [rows[i, t].item() for i, t in enumerate(tokens[1:])]
            # f32: both sum the same products in another order. bf16: each rounding is 2^-9.
            bound = 1e-4 if "f32" in s.options else 5e-2
            for ours, value in zip(logprobs(client), theirs):
                assert abs(ours - value) < bound * max(1.0, abs(value)), (unembed, logprobs(client), theirs)


def item_098_runs_page_newest_first(s):
    raws = [Raw(s, key=BOB, user_metadata={"renderer_name": str(i)}) for i in range(3)]
    total = s.ok("GET", "training_runs?limit=1", BOB)["cursor"]["total_count"]
    seen = []
    for offset in range(total):
        page = s.ok("GET", f"training_runs?limit=1&offset={offset}", BOB)
        seen += [r["training_run_id"] for r in page["training_runs"]]
    assert len(seen) == len(set(seen)) == total
    assert seen[:3] == [r.model for r in reversed(raws)]
    assert s.ok("GET", f"training_runs/{raws[1].model}", BOB)["user_metadata"] == {"renderer_name": "1"}


def item_099_another_tenant_finds_nothing(s):
    raw = Raw(s)
    path = raw.save("a")["path"]
    sampler = raw.save("s", "save_weights_for_sampler")["path"]
    target = f"training_runs/{raw.model}/checkpoints/weights/a"
    for method, what, body in (("GET", f"training_runs/{raw.model}", None),
                               ("GET", f"training_runs/{raw.model}/checkpoints", None),
                               ("DELETE", target, None), ("POST", f"{target}/publish", {}),
                               ("DELETE", f"{target}/publish", None), ("GET", f"{target}/archive", None),
                               ("PUT", f"{target}/ttl", {"ttl_seconds": 60}),
                               ("POST", "weights_info", {"tinker_path": path})):
        status, foreign, _ = s.call(method, what, BOB, body)
        wanted(status, 404)
        status, unknown, _ = s.call(method, what.replace(raw.model, "nobody"), BOB,
                                    body and json.loads(json.dumps(body).replace(raw.model, "nobody")))
        wanted(status, 404)
        assert json.dumps(foreign).replace(raw.model, "nobody") == json.dumps(unknown)
    s.ok("POST", f"{target}/publish", ALICE, {})
    s.ok("POST", f"training_runs/{raw.model}/checkpoints/sampler_weights/s/publish", ALICE, {})
    s.ok("POST", "weights_info", BOB, {"tinker_path": path})
    wanted(s.call("DELETE", target, BOB)[0], 404)
    bob = Raw(s, key=BOB)
    wanted(bob.sampler(0, model_path=sampler)[0], 200)
    assert all(c["tinker_path"] != path for c in s.ok("GET", "checkpoints?limit=1000", BOB)["checkpoints"])
    url = s.ok("GET", f"{target}/archive", BOB)["url"]
    wanted(s.call("GET", url, None)[0], 200)
    s.ok("DELETE", f"{target}/publish")
    wanted(s.call("GET", url, None)[0], 404)


# What 0.26 to 0.38 added

def item_111_load_weights_creates_a_model(s):
    raw = Raw(s)
    path = raw.save("a")["path"]
    body = {"session_id": raw.session, "model_seq_id": 5, "path": path, "optimizer": True,
            "user_metadata": {"from": "a"}}
    first = s.ok("POST", "load_weights", body=body)
    again = s.ok("POST", "load_weights", body=body)
    assert first["request_id"] == again["request_id"]
    status, made = s.poll(first["request_id"])
    wanted(status, 200)
    assert made["model_id"] == f"{raw.session}:train:5", made
    info = s.ok("POST", "get_info", body={"model_id": made["model_id"]})
    assert info["lora_rank"] == 8 and info["model_name"] == "tiny"
    raw.model, raw.seq = made["model_id"], 0
    raw.save("b")
    assert s.ok("GET", f"training_runs/{raw.model}")["user_metadata"] == {"from": "a"}


def item_112_finish_ends_a_session_and_keeps_checkpoints(s):
    raw = Raw(s)
    path = raw.save("a")["path"]
    body = {"reason": {"type": "success"}, "detail": None}
    for _ in range(2):
        s.ok("POST", f"sessions/{raw.session}/finish", body=body)
    wanted(s.call("POST", "session_heartbeat", body={"session_id": raw.session})[0], 410)
    for status in (raw.submit("save_weights", path="x")[0], raw.sampler(0, base_model="tiny")[0],
                   s.call("POST", "create_model", body={"session_id": raw.session, "model_seq_id": 1,
                                                        "base_model": "tiny", "lora_config": {"rank": 8}})[0]):
        assert 400 <= status < 500 and status not in (408, 409, 429), status
    other = Raw(s)
    assert "error" not in other.run("load_weights", path=path, optimizer=True)
    wanted(s.call("POST", "sessions/nobody/finish", body=body)[0], 404)


def item_113_copy_weights_is_independent(s):
    raw = Raw(s)
    source = raw.save("a", ttl_seconds=3)["path"]
    key = [("X-Idempotency-Key", "0a1b2c3d-copy")]
    body = {"source_path": source, "session_id": raw.session, "model_seq_id": 9}
    copy = s.ok("POST", "copy_weights", body=body, headers=key)["tinker_path"]
    assert s.ok("POST", "copy_weights", body=body, headers=key)["tinker_path"] == copy
    assert s.ok("GET", f"training_runs/{raw.session}:train:9")["last_checkpoint"]["tinker_path"] == copy
    s.ok("DELETE", f"training_runs/{raw.model}/checkpoints/weights/a")
    time.sleep(6)  # a sweep has passed
    assert "error" not in raw.run("load_weights", path=copy, optimizer=True)
    status, content, _ = s.call("POST", "copy_weights", body={**body, "weights_access_token": "x"})
    wanted(status, 400)
    assert "weights_access_token" in json.dumps(content)


def fetch_external(s, path, folder):
    links = s.rest().get_external_weights_urls(path).result()
    for name, url in links.urls.items():
        urllib.request.urlretrieve(url, pathlib.Path(folder, name))
    return sorted(links.urls)


def item_114_external_weights_by_signed_urls(s):
    raw = Raw(s)
    made = raw.save("e", "save_weights_external", ttl_seconds=3600)
    assert made["path"] == f"tinker://{raw.model}/external_weights/e", made
    target = f"training_runs/{raw.model}/checkpoints/external_weights/e"
    links = s.ok("GET", f"{target}/external_weights_urls")
    assert sorted(links["urls"]) == ["adapter_config.json", "adapter_model.safetensors"]
    url = links["urls"]["adapter_model.safetensors"]
    status, content, headers = s.call("GET", url, None)
    wanted(status, 200)
    assert int(headers["Content-Length"]) == len(content)
    assert headers["Content-Disposition"].startswith("attachment")
    status, part, headers = s.call("GET", url, None, headers=[("Range", "bytes=8-15")])
    wanted(status, 206)
    assert part == content[8:16] and headers["Content-Range"] == f"bytes 8-15/{len(content)}"
    status, nothing, headers = s.call("HEAD", url, None)
    wanted(status, 200)
    assert nothing == b"" and int(headers["Content-Length"]) == len(content)
    assert s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"][0]["checkpoint_type"] == "external"
    s.ok("PUT", f"{target}/ttl", body={"ttl_seconds": 60})
    s.ok("DELETE", target)
    wanted(s.call("GET", url, None)[0], 410)
    for bad in ("age1nonsense", "", "ssh-rsa AAAA"):
        status, content, _ = raw.submit("save_weights_external", path="x", age_encryption_recipients=[bad])
        if status == 200:
            assert s.poll(content["request_id"])[1]["category"] == "user"
        else:
            wanted(status, 400)


def item_114_age_encryption_both_ways(s):
    try:
        import pyrage
    except ImportError as error:
        raise Skip("pyrage is not installed") from error
    identity = pyrage.x25519.Identity.generate()
    raw = Raw(s)
    plain = raw.save("p", "save_weights_external")["path"]
    sealed = raw.save("c", "save_weights_external", age_encryption_recipients=[str(identity.to_public())])["path"]
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        assert fetch_external(s, sealed, b) == ["adapter_config.json.age", "adapter_model.safetensors.age"]
        for name in fetch_external(s, plain, a):
            text = pyrage.decrypt(pathlib.Path(b, name + ".age").read_bytes(), [identity])
            assert text == pathlib.Path(a, name).read_bytes(), name


def item_115_only_adamw(s):
    session = s.ok("POST", "create_session", body={})["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 8}}
    status, content, _ = s.call("POST", "create_model", body={**body, "optimizer_config": {"type": "dimuon", "version": 1}})
    wanted(status, 400)
    assert "dimuon" in json.dumps(content)
    assert "model_id" in s.future("create_model", body={**body, "optimizer_config": {"type": "adamw"}})
    raw = Raw(s)
    refused = raw.submit("optim_step", optimizer_params={"type": "dimuon"})
    wanted(refused[0], 400)
    raw.run("optim_step", adam_params={})


def item_116_snapshots_and_inflight(s):
    raw = Raw(s)
    raw.save("a", "save_weights_for_sampler", kind="snapshot")
    status, content, _ = raw.submit("save_weights_for_sampler", path="b", kind="inflight")
    if status == 200:
        content = s.poll(content["request_id"])[1]
        assert content["category"] == "user"
    assert "inflight" in json.dumps(content)
    raw.save("c", "save_weights_for_sampler")


def item_117_metadata_of_saves(s):
    raw = Raw(s)
    for path, kind in (("save_weights", "weights"), ("save_weights_for_sampler", "sampler_weights"),
                       ("save_weights_external", "external_weights")):
        raw.save("m", path, user_metadata={"k": "v", "n": "\u00e9\u0000"})
        listed = s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]
        mine = [c for c in listed if c["checkpoint_id"] == f"{kind}/m"]
        assert mine[0]["user_metadata"] == {"k": "v", "n": "\u00e9\u0000"}, mine


def item_128_sessions_say_what_they_are(s):
    made = s.ok("POST", "create_session", body={"display_name": "<b>mine</b>", "user_metadata": {"a": "b"}})
    session = made["session_id"]
    s.future("create_model", body={"session_id": session, "model_seq_id": 3, "base_model": "tiny",
                                   "lora_config": {"rank": 8}})
    shown = s.ok("GET", f"sessions/{session}")
    assert shown["display_name"] == "<b>mine</b>" and shown["user_metadata"] == {"a": "b"}
    assert shown["training_run_ids"] == [f"{session}:train:3"]
    assert s.ok("GET", "sessions?limit=1")["sessions"] == [session]
    wanted(s.call("GET", f"sessions/{session}", BOB)[0], 404)
    s.ok("PUT", f"sessions/{session}/project", body={"project_id": "p-1"})
    assert s.ok("GET", "training_runs?project_id=p-1")["training_runs"][0]["training_run_id"] == f"{session}:train:3"


def item_130_service_only_endpoints_answer_json(s):
    for method, path in (("POST", "sessions/search"), ("GET", "audit?day=2026-01-01"), ("GET", "billing/usage/events"),
                         ("GET", "billing/usage/checkpoints/current"), ("POST", "create_custom_loss"),
                         ("POST", "auth/token"), ("GET", "auth/apikey/me"), ("GET", "sessions/x/trace_export")):
        status, content, _ = s.call(method, path, body={} if method == "POST" else None)
        assert status < 500 and isinstance(content, dict), (path, status, content)
        assert ALICE not in json.dumps(content)


def item_131_the_sdk_from_create_to_close(s):
    with s.service() as service:
        client = service.create_lora_training_client(base_model="tiny", rank=8).result()
        train(client)
        path = client.save_state("a").result().path
        sampler = client.save_weights_and_get_sampling_client().result()
        prompt = types.ModelInput.from_ints([1, 2, 3])
        assert sampler.sample(prompt, 1, types.SamplingParams(max_tokens=3)).result().sequences[0].tokens
        resumed = service.create_training_client_from_state(path).result()
        train(resumed, 1)
        rest = s.rest()
        assert path in [c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints]
        rest.delete_checkpoint_from_tinker_path(path).result()
        try:
            service.create_training_client_from_state(path).result()
            raise AssertionError("a deleted checkpoint was loaded")
        except (tinker.NotFoundError, tinker.BadRequestError, tinker.RequestFailedError):
            pass


def item_132_old_clients_see_no_external(s):
    raw = Raw(s)
    raw.save("e", "save_weights_external")
    raw.save("a")
    for path in ("checkpoints?limit=1000", f"training_runs/{raw.model}/checkpoints"):
        for version, shows in (("0.25.0", False), ("0.27.2", False), ("0.28.0", True), ("0.38.0", True)):
            found = s.ok("GET", path, headers=[("X-Stainless-Package-Version", version)])["checkpoints"]
            assert any(c["checkpoint_type"] == "external" for c in found) == shows, version
            assert any(c["checkpoint_type"] == "training" for c in found)


# Restarts; each starts and ends with a running server

def item_035_after_kill_9(s):
    raw = Raw(s)
    saved = raw.save("a")["path"]
    sampler_path = raw.save("s", "save_weights_for_sampler")["path"]
    status, kept, _ = raw.sampler(0, model_path=sampler_path)
    ephemeral = raw.run("save_weights_for_sampler", sampling_session_seq_id=1)["sampling_session_id"]
    before = raw.sample(kept["sampling_session_id"], 0)
    raw.seq += 1  # a gap: what follows is held
    held = raw.submit("save_weights", path="held")[1]["request_id"]
    sample = s.ok("POST", "asample", body={
        "sampling_session_id": kept["sampling_session_id"], "seq_id": 7, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
        "sampling_params": {"max_tokens": 2}})["request_id"]
    s.stop(signal.SIGKILL)
    s.start()
    status, content = s.poll(held)
    assert status == 200 and content["category"] == "server", (status, content)
    wanted(s.poll(sample)[0], 410)
    wanted(s.poll(held, BOB)[0], 404)
    wanted(s.poll("unknown")[0], 404)
    status, content, _ = raw.submit("optim_step", adam_params={})
    wanted(status, 404)
    assert "lost" in json.dumps(content) and saved in json.dumps(content), content
    s.ok("POST", "session_heartbeat", body={"session_id": raw.session})
    assert raw.sample(kept["sampling_session_id"], 1) == before
    assert raw.sample(ephemeral, 0)[0] in (404, 410)
    made = s.future("load_weights", body={"session_id": raw.session, "model_seq_id": 1, "path": saved,
                                          "optimizer": True})
    assert made["model_id"] == f"{raw.session}:train:1"
    names = [c["checkpoint_id"] for c in s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]]
    assert sorted(names) == ["sampler_weights/s", "weights/a"], names


def item_100_no_half_checkpoint_after_kill_9(s):
    raw = Raw(s)
    for i in range(5):
        raw.submit("save_weights", path=f"k{i}")
    time.sleep(0.05)
    s.stop(signal.SIGKILL)
    data = s.folder / "data"
    s.start()
    assert not list((data / "tmp").iterdir())
    listed = s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]
    folders = list((data / "checkpoints" / "alice" / raw.model).glob("weights/*"))
    assert len(folders) == len(listed)
    other = Raw(s)
    for checkpoint in listed:
        assert "error" not in other.run("load_weights", path=checkpoint["tinker_path"], optimizer=True)


def item_900_shutdown_finishes_queued_saves(s):
    raw = Raw(s)
    for i in range(3):
        raw.submit("save_weights", path=f"q{i}")
    assert s.stop(signal.SIGTERM) == 0
    s.start()
    listed = s.ok("GET", f"training_runs/{raw.model}/checkpoints")["checkpoints"]
    assert len(listed) == 3, listed


def item_901_the_log_holds_no_secret(s):
    text = (s.folder / "log").read_text(errors="replace")
    assert ALICE not in text and BOB not in text and "token=" not in text and "expires=" not in text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strata", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--option", action="append", default=[], help="one more word of strata serve's command line")
    parser.add_argument("items", nargs="*", help="parts of names; default: all")
    args = parser.parse_args()
    items = [(name, f) for name, f in globals().items() if name.startswith("item_")]
    chosen = [(n, f) for n, f in items if not args.items or any(part in n for part in args.items)]
    counts = {"passed": 0, "skipped": 0, "failed": 0}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.strata, args.model, folder, args.option)
        server.start()
        for name, function in chosen:
            start = time.time()
            try:
                function(server)
                outcome, why = "passed", ""
                record([int(name.split("_")[1])], f"state_items.py {name}")
            except Skip as reason:
                outcome, why = "skipped", f": {reason}"
            except Exception:  # noqa: BLE001: one item's fault must not hide the others'
                outcome, why = "failed", "\n" + traceback.format_exc()
                if server.process.poll() is not None:
                    print(f"the server ended with {server.process.returncode}")
                    server.start()
            counts[outcome] += 1
            print(f"{outcome:8}{name} ({time.time() - start:.1f} s){why}", flush=True)
        code = server.stop()
        if code != 0 or counts["failed"]:
            print((server.folder / "log").read_text(errors="replace")[-4000:])
    print(", ".join(f"{n} {word}" for word, n in counts.items()), f"; the server ended with {code}")
    sys.exit(1 if counts["failed"] or code != 0 else 0)


if __name__ == "__main__":
    main()
