# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a whole server at random moments under load: after each restart every acknowledged checkpoint loads, every
future resolves as promised, and no file is half-written.

usage: kill.py STRATA MODEL_DIR [KILLS, 3] [SEED]
"""
import json
import os
import pathlib
import random
import signal
import struct
import sys
import tempfile
import threading
import time

import httpx

from lifetimes import Server
from wire import KEY, Wire, ce, wait_until

A = [5, 9, 17, 33, 65, 12, 40, 7]
FILES = {"weights": ["adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "strata.json",
                     "checkpoint_complete"],
         "sampler_weights": ["adapter_model.safetensors", "adapter_config.json", "strata.json", "checkpoint_complete"]}


class Client(threading.Thread):
    """Works until the server is gone; remembers what it was promised."""

    def __init__(self, url, seed):
        super().__init__(daemon=True)
        self.wire = Wire(url, KEY)
        self.random = random.Random(seed)
        self.open = {}      # request id: kind
        self.acknowledged = set()  # paths
        self.fault = None

    def run(self):
        try:
            self.work()
        except (httpx.HTTPError, OSError):
            pass  # the server was killed
        except Exception as error:  # noqa: BLE001: reported by the round
            self.fault = error

    def accepted(self, reply, kind):
        assert reply.status_code == 200, (kind, reply.status_code, reply.text)
        request = reply.json()["request_id"]
        self.open[request] = kind
        return request

    def settle(self, request):
        reply = self.wire.poll(request)
        assert reply.status_code == 200, (self.open[request], reply.status_code, reply.text)
        del self.open[request]
        return reply


class Trainer(Client):
    def work(self):
        wire, session = self.wire, self.wire.session()
        model = wire.model(session, 0, rank=self.random.choice([1, 4, 8]))
        while True:
            sent = [self.accepted(model.send([ce(A)] * self.random.randint(1, 4)), "train"),
                    self.accepted(model.send_step(), "train")]
            name = f"n{self.random.randint(0, 2)}"
            endpoint = self.random.choice(["save_weights", "save_weights_for_sampler"])
            sent.append(self.accepted(model.op(endpoint, path=name, overwrite=True), "save"))
            held = model.send_step(seq=10_000 + model.seq)  # behind a gap: never runs
            self.accepted(held, "held")
            for request in sent:
                done = self.settle(request)
                if done.headers["content-type"] == "application/json":
                    body = done.json()
                    assert "error" not in body, body
                    if "path" in body:
                        self.acknowledged.add(body["path"])


class Sampler(Client):
    def work(self):
        wire, session = self.wire, self.wire.session()
        sampler = wire.sampler(session, 0, base_model="tiny")
        seq = 0
        while True:
            sent = []
            for _ in range(4):
                seq += 1
                sent.append(self.accepted(wire.sample(sampler, seq, A, max_tokens=16, count=2), "sample"))
            for request in sent:
                self.settle(request)


def check_files(data):
    """Every folder is whole, every tensor file as long as its header says, and tmp/ is empty. No server runs."""
    assert os.listdir(data / "tmp") == []
    folders = [f for f in (data / "checkpoints").glob("*/*/*/*") if f.is_dir()]
    for folder in folders:
        kind = folder.parent.name
        have = sorted(f.name for f in folder.iterdir())
        want = FILES["weights" if kind == "weights" else "sampler_weights"]
        assert set(want) <= set(have), (folder, have)
        for file in folder.glob("*.safetensors"):
            blob = file.read_bytes()
            length = struct.unpack("<Q", blob[:8])[0]
            header = json.loads(blob[8:8 + length])
            end = max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__")
            assert len(blob) == 8 + length + end, file
        json.loads((folder / "adapter_config.json").read_text())
        json.loads((folder / "strata.json").read_text())
    return len(folders)


def check_futures(wire, clients):
    count = 0
    for client in clients:
        for request, kind in client.open.items():
            reply = wire.poll(request)
            if kind == "sample":
                assert reply.status_code == 410, (kind, reply.status_code, reply.text)
            else:
                assert reply.status_code == 200 and reply.json().get("category") == "server", (kind, reply.text)
            count += 1
    return count


def check_checkpoints(wire, paths):
    session = wire.session()
    for i, path in enumerate(sorted(paths)):
        if "/sampler_weights/" in path:
            wire.sampled(wire.sampler(session, i, model_path=path), 0, A, max_tokens=1)
        else:
            loaded = wire.result(wire.post("load_weights", {"session_id": session, "model_seq_id": i, "path": path,
                                                            "optimizer": True}))
            assert "error" not in loaded, (path, loaded)
            wire.result(wire.post("unload_model", {"model_id": loaded["model_id"]}))
    wire.post(f"sessions/{session}/finish", {})


def one_round(strata, model, data, seed, before, starts):
    def start():
        begin = time.monotonic()
        server = Server(strata, model, str(data), "--memory", "1GiB")
        starts.append(time.monotonic() - begin)
        return server
    chance = random.Random(seed)
    server = start()
    clients = [Trainer(server.url, chance.random()) for _ in range(3)] + [Sampler(server.url, chance.random())]
    for client in clients:
        client.start()
    if chance.random() < 0.8:  # else also while the first ones are created
        wait_until(lambda: any(c.acknowledged for c in clients), 30)
    time.sleep(0.1 + 2.0 * chance.random())
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    for client in clients:
        client.join(90)
        if client.fault:
            raise client.fault
    server = start()
    wire = Wire(server.url, KEY)
    futures = check_futures(wire, clients)
    fresh = set().union(*(c.acknowledged for c in clients))
    some = set(chance.sample(sorted(before), min(3, len(before))))
    check_checkpoints(wire, fresh | some)
    assert server.stop() == 0
    folders = check_files(data)
    return fresh, futures, folders


def main():
    strata, model = sys.argv[1:3]
    kills = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else int(time.time())
    print(f"kill: seed {seed}", flush=True)
    acknowledged, futures, folders, starts = set(), 0, 0, []
    with tempfile.TemporaryDirectory() as data:
        for i in range(kills):
            fresh, lost, folders = one_round(strata, model, pathlib.Path(data), seed + i, acknowledged, starts)
            acknowledged |= fresh
            futures += lost
    print(f"kill: {kills} kills; {len(acknowledged)} acknowledged checkpoints load, {futures} lost futures resolved, "
          f"{folders} folders whole at the end; started within {max(starts):.2f} s; passed")


if __name__ == "__main__":
    main()
