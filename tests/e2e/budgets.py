# SPDX-License-Identifier: Apache-2.0
"""What requests make the server hold, with default limits: a tenant that takes its share is told so and others do not
notice; sixteen of them together take no more than the limit; what parsing and unread responses take counts too.

usage: budgets.py STRATA MODEL_DIR
"""
import json
import pathlib
import re
import socket
import sys
import tempfile
import threading
import time

import httpx
import zstandard

from hostile import slow_reader, wide
from lifetimes import Server
from wire import Wire, as_json, ce, wait_until

TENANTS, MIB = 16, 1 << 20
A = [5, 9, 17, 33, 65, 12, 40, 7]


class House:
    """A server with sixteen tenants, each with a session, a model and a sampler."""

    def __init__(self, strata, model, folder, memory):
        keys = [f"tml-{i:032d}" for i in range(TENANTS)]
        path = pathlib.Path(folder, "keys")
        path.write_text("".join(f"{key} tenant{i}\n" for i, key in enumerate(keys)))
        path.chmod(0o600)
        self.server = Server(strata, model, str(pathlib.Path(folder, "data")), "--keys", str(path), "--memory", memory, keys=True)
        self.keys = keys
        self.port = int(self.server.url.rsplit(":", 1)[1])
        self.wires = [Wire(self.server.url, key) for key in keys]
        self.sessions = [wire.session() for wire in self.wires]
        self.models = [wire.model(session) for wire, session in zip(self.wires, self.sessions)]
        self.samplers = [wire.sampler(session, 0, base_model="tiny") for wire, session in zip(self.wires, self.sessions)]
        self.number = 0
        self.most = dict.fromkeys(self.plan, 0.0)

    def gauges(self, name):
        text = httpx.get(self.server.metrics_url).text
        return {use: float(value) for use, value in re.findall(rf'^{name}{{use="(\w+)"}} (\S+)$', text, re.M)}

    @property
    def plan(self):
        return self.gauges("strata_memory_plan_bytes")

    def held(self):
        """In use by owner; never more than planned."""
        used, plan = self.gauges("strata_memory_bytes"), self.plan
        for owner in ("bodies", "queue", "results", "responses"):
            assert used[owner] <= plan[owner], (owner, used[owner], plan[owner])
            self.most[owner] = max(self.most[owner], used[owner])
        return used

    def anonymous(self):
        for line in open(f"/proc/{self.server.process.pid}/status"):
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10
        raise AssertionError("the server is gone")

    def is_well(self, i):
        """Another tenant's beat, sample and step are answered at once."""
        begin = time.monotonic()
        wire = self.wires[i]
        assert wire.post("session_heartbeat", {"session_id": self.sessions[i]}).status_code == 200
        self.number += 1
        wire.sampled(self.samplers[i], self.number, A)
        done = wire.result(self.models[i].send([ce(A)]))
        assert isinstance(done, bytes), done
        assert time.monotonic() - begin < 5, "another tenant waited"

    def raw(self, i, path, content, more, **headers):
        """A connection with a request of which `more` bytes are still to come."""
        peer = slow_reader(self.port)
        lines = [f"POST /api/v1/{path} HTTP/1.1", "Host: 127.0.0.1", f"X-API-Key: {self.keys[i]}",
                 f"Content-Length: {len(content) + more}", *(f"{name}: {value}" for name, value in headers.items())]
        try:
            peer.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        except OSError:
            pass  # refused already
        return peer


def refused(reply, option):
    assert option in reply.text and int(reply.headers["retry-after"]) > 0, reply.text
    return reply


def large(tokens):
    """A pass that takes some 12 bytes a token, and is never run: its number comes too late."""
    return [ce([1 + i % 4000 for i in range(2049)])] * (tokens // 2048)


def queue(house):
    """One tenant's share of the queue; then everybody's, the last of whom are refused; each may still send what runs next."""
    def fill(i):
        for number in range(2, 200):
            reply = house.models[i].send(large(40 * 2048), seq=house.models[i].seq + number)
            if reply.status_code != 200:
                assert reply.status_code == 429, reply.text
                refused(reply, "--max-queued-bytes")
                return number - 2
        raise AssertionError("the queue is never full")
    house.is_well(1)
    counts = [fill(0)]
    assert house.held()["queue"] > 0.2 * house.plan["queue"]
    house.is_well(1)
    counts += [fill(i) for i in range(1, TENANTS)]
    held = house.held()["queue"]
    assert counts[0] > 3 * counts[-1], counts
    for i in range(TENANTS):
        model = house.models[i]
        reply = model.send([ce(A)])
        assert reply.status_code == 200, (i, reply.text)
        assert isinstance(house.wires[i].result(reply), bytes)
    for i in range(TENANTS):
        house.wires[i].result(house.wires[i].post("unload_model", {"model_id": house.models[i].id}))
        house.models[i] = house.wires[i].model(house.sessions[i], 1)
    assert wait_until(lambda: house.held()["queue"] < MIB), house.held()
    return f"{counts[0]} passes of 1 MB of one tenant, {counts[1:]} of the others beside them, {held / MIB:.0f} MiB"


def results(house):
    """Results that nobody fetches."""
    wire, count = house.wires[0], 0
    while True:
        reply = wire.sample(house.samplers[0], 1000 + count, [7] * 1000, max_tokens=1, topk_prompt_logprobs=1024)
        if reply.status_code != 200:
            break
        count += 1
        time.sleep(0.05)
        assert count < 200, "results take any room"
    assert reply.status_code == 429, reply.text
    refused(reply, "--max-result-bytes")
    house.is_well(1)
    held = house.held()["results"]
    for sequence in range(1000, 1000 + count):
        again = wire.sample(house.samplers[0], sequence, [7] * 1000, max_tokens=1, topk_prompt_logprobs=1024)
        wire.result(again)  # the same one
    assert wire.result(wire.sample(house.samplers[0], 2000, A)), "nothing goes on after the results were fetched"
    return f"{count} results of 8 MB, {held / MIB:.0f} MiB"


def bodies(house):
    """Bodies whose last byte does not come."""
    peers = []
    try:
        for _ in range(100):
            peers.append(house.raw(0, "forward_backward", bytes(MIB), 1, **{"Content-Type": "application/x-protobuf"}))
        time.sleep(1)
        held = house.held()["bodies"]
        reply = house.models[0].send(large(2048 * 120))
        assert reply.status_code == 429, (reply.status_code, reply.text)
        refused(reply, "--max-body-bytes")
        house.is_well(1)
    finally:
        for peer in peers:
            peer.close()
    assert wait_until(lambda: house.held()["bodies"] < MIB), house.held()
    house.models[0].seq -= 1
    house.is_well(0)
    return f"{held / MIB:.0f} MiB of 100 bodies of 1 MiB"


def parsed(house):
    """Samples beside half a million zeros, which take dozens of times their size while they are parsed."""
    def body(number):
        head = {"num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": A}]}, "sampling_params": {"max_tokens": 1},
                "sampling_session_id": house.samplers[0], "seq_id": 5000 + number}
        return zstandard.ZstdCompressor().compress(json.dumps(head)[:-1].encode() + b',"a":[' + b"0," * 500_000 + b"0]}")
    before, most, codes = house.anonymous(), 0, []

    def send(content):
        with httpx.Client(base_url=house.server.url, timeout=60, headers={
                "X-API-Key": house.keys[0], "Content-Type": "application/json", "Content-Encoding": "zstd"}) as http:
            codes.append(http.post("/api/v1/asample", content=content).status_code)
    threads = [threading.Thread(target=send, args=(body(i),)) for i in range(30)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        house.held()
        most = max(most, house.anonymous())
    house.is_well(1)
    assert set(codes) <= {200, 429} and 200 in codes, codes
    grown = most - before
    assert grown < house.plan["bodies"] + 64 * MIB, f"{grown / MIB:.0f} MiB"
    return f"{codes.count(200)} of 30 were taken, {grown / MIB:.0f} MiB"


def unread(house):
    """Polls that want a long result as JSON, which is made for each of them, and do not read it."""
    house.models[0].seq += 1
    long = as_json(house.models[0].message([wide()], "cross_entropy", house.models[0].seq, forward_only=True))
    begun = house.wires[0].ok(*long)
    size = len(house.wires[0].poll(begun["request_id"], Accept="application/json").content)
    content = json.dumps({"request_id": begun["request_id"]}).encode()
    before, peers = house.anonymous(), []
    try:
        for _ in range(60):
            peers.append(house.raw(0, "retrieve_future", content, 0, Accept="application/json", **{"Content-Type": "application/json"}))
        assert wait_until(lambda: house.held()["responses"] > 0.3 * house.plan["responses"], 30), house.held()
        time.sleep(2)
        grown = house.anonymous() - before
        house.held()
        house.is_well(1)
    finally:
        for peer in peers:
            peer.close()
    assert grown < house.plan["responses"] + 32 * MIB, f"{grown / MIB:.0f} MiB"
    return f"60 unread results of {size / 1e6:.1f} MB, {grown / MIB:.0f} MiB"


def main():
    strata, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        house = House(strata, model, folder, "1GiB")
        for trial in (queue, results, bodies, parsed, unread):
            print(f"budgets: {trial.__name__}: {trial(house)}", flush=True)
        plan = house.plan
        for owner in ("bodies", "queue", "results", "responses"):
            print(f"  {owner:<10} at most {house.most[owner] / MIB:6.1f} of {plan[owner] / MIB:6.1f} MiB")
        assert house.anonymous() < 1.05 * plan["all"]
        house.server.stop()
    print("budgets: passed")


if __name__ == "__main__":
    main()
