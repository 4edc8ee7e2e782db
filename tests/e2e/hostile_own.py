# SPDX-License-Identifier: Apache-2.0
"""Hostile requests that need servers of their own, as rows of tests/e2e/hostile.py: `ATTACKS` of (what, want, send(world))."""
import contextlib
import fcntl
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time

import httpx

from wire import Wire, ce

ATTACKS = []
# Rows, also of other files, that start a server of their own and do nothing to any other.
ELSEWHERE = set()
CONNECTIONS = 24


def attack(what, want):
    def register(send):
        ATTACKS.append(elsewhere(what, want, send))
        return send
    return register


def elsewhere(what, want, send):
    """A row that starts a server of its own."""
    ELSEWHERE.add(what)
    return what, want, send


@contextlib.contextmanager
def server(w, folder, listen, *more, audit="audit", works=True):
    """The port of a server like the world's, with other options; its log is in `folder`. The world's bystander is there too, who
    only beats where it does not work: where changes are refused."""
    model, keys = [w.process.args[w.process.args.index(name) + 1] for name in ("--model", "--keys")]
    with open(f"{folder}/log", "a") as log, contextlib.ExitStack() as ends:
        process = w.watch.start(
            subprocess.Popen, [w.process.args[0], "serve", "--model", model, "--keys", keys, "--data", f"{folder}/state", "--audit",
                               f"{folder}/{audit}", "--listen", listen, "--memory", "1GiB", *more], stdout=subprocess.PIPE, stderr=log, text=True)
        ends.callback(process.wait, 60)
        ends.callback(process.kill)
        port = next(int(line.rsplit(":", 1)[1]) for line in process.stdout if line.startswith("listening on "))
        bystander = w.watch.bystander(f"http://127.0.0.1:{port}", process.pid, 1 << 30, works)
        ends.callback(bystander.end)
        bystander.begin()
        yield port
        w.watch.outside += bystander.report("  at a server of its own")


def own_address():
    """Of this machine, other than loopback: what one of another network would have. None: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            return probe.getsockname()[0]
        except OSError:
            return None


def status(port, method, path, key, host="127.0.0.1", **more):
    more = {"headers": {"X-API-Key": key} if key else {}, "timeout": 20, **more}
    return httpx.request(method, f"http://{host}:{port}/api/v1/{path}", **more).status_code


@attack("all connections held by one address, idle, and a request of another", 200)
def idle(w):
    address = own_address()
    if address is None or address.startswith("127."):
        print("  (this machine has no second address: nobody holds connections)", flush=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as kept, server(
            w, folder, "0.0.0.0:0", "--max-connections", str(CONNECTIONS), "--max-connections-per-address", str(CONNECTIONS),
            "--max-parked", "4") as port:
        for _ in range(CONNECTIONS if address else 0):
            kept.enter_context(socket.create_connection((address, port)))
        end = time.monotonic() + 5
        while True:
            try:
                return status(port, "GET", "get_server_capabilities", w.keys[0])
            except httpx.HTTPError:
                assert time.monotonic() < end, "the connections stay held"
                time.sleep(0.05)


def fill(path):
    """The pipe takes no more."""
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    for some in (b"#" * 512, b"#"):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, some)
    os.close(writer)


@attack("a change while the audit log's disk hangs, and a request that changes nothing", "200, 200")
def hanging_disk(w):
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/audit")
        reader = os.open(f"{folder}/audit", os.O_RDONLY | os.O_NONBLOCK)
        with server(w, folder, "127.0.0.1:0", works=False) as port:
            fill(f"{folder}/audit")
            changed = status(port, "POST", "create_session", w.keys[0], json={"tags": [], "sdk_version": "1"})
            read = status(port, "GET", "get_server_capabilities", w.keys[0])
        os.close(reader)
    return f"{changed}, {read}"


@attack("300 sampling sessions of a sample-only key where some 80 have space, the first of them again, and then unsaved ones",
        "200, the same bits, 429")
def crowd_of_samplers(w):
    with tempfile.TemporaryDirectory() as folder, server(
            w, folder, "127.0.0.1:0", "--max-remembered-bytes", "128KiB", "--max-ephemeral", "1000", "--metrics-listen",
            f"unix:{folder}/metrics") as port:
        trainer, player = (Wire(f"http://127.0.0.1:{port}", w.keys[i]) for i in (0, 4))
        session = trainer.session()
        first = player.sampler(session, 0, base_model="tiny")
        asked = {"prompt": [5, 9, 17], "params": {"seed": 7}, "max_tokens": 8}
        before = player.sampled(first, 1, **asked)
        codes = {player.post("create_sampling_session", {"session_id": session, "sampling_session_seq_id": i,
                                                         "base_model": "tiny"}).status_code for i in range(1, 300)}
        with httpx.Client(transport=httpx.HTTPTransport(uds=f"{folder}/metrics")) as metrics:
            text = metrics.get("http://localhost/metrics").text
        held = [line for line in text.splitlines() if 'samplers"' in line and not line.startswith("#")]
        assert held and all(float(line.split()[-1]) <= 64 << 10 for line in held), held
        same = player.sampled(first, 2, **asked).SerializeToString() == before.SerializeToString()
        model = trainer.model(session, 0)
        for i in range(3000, 3300):
            saved = model.op("save_weights_for_sampler", sampling_session_seq_id=i)
            if saved.status_code != 200:
                break
            trainer.result(saved)
        assert trainer.sampled(first, 3, **asked).SerializeToString() == before.SerializeToString()
        codes = ", ".join(map(str, sorted(codes)))
        return f"{codes}, {'the same' if same else 'other'} bits, {saved.status_code}"


def held_request(wire):
    """A future that waits for a number that nobody sends."""
    model = wire.model(wire.session(), 0)
    model.next()
    return model.send([ce([5, 9, 17])]).json()["request_id"]


def poll(port, key, request, headers="", host="127.0.0.1"):
    """A connection that polls."""
    body = json.dumps({"request_id": request}).encode()
    peer = socket.create_connection((host, port))
    peer.sendall(b"POST /api/v1/retrieve_future HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                 + f"{headers}X-API-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return peer


def answer_of(peer, wait):
    """The status that has come; None: it waits."""
    peer.settimeout(wait)
    try:
        reply = peer.recv(4096)
    except TimeoutError:
        return None
    except OSError:
        return 0
    return int(reply[9:12]) if reply else 0


@attack("200 polls whose clients have gone where 16 may wait, and one more", "held")
def polls_of_nobody(w):
    with tempfile.TemporaryDirectory() as folder, server(w, folder, "127.0.0.1:0", "--max-parked", "16") as port:
        request = held_request(Wire(f"http://127.0.0.1:{port}", w.keys[0]))
        for _ in range(200):
            with poll(port, w.keys[0], request):
                pass
        time.sleep(1)
        with poll(port, w.keys[0], request) as last:
            status = answer_of(last, 2)
    return "held" if status is None else status


@attack("polls of one key on all connections that it gets, again and again, and another's requests on new ones", "429; 200")
def polls_everywhere(w):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as kept, server(
            w, folder, "127.0.0.1:0", "--max-connection-bytes", f"{2 * CONNECTIONS * 12}KiB") as port:
        trainer = Wire(f"http://127.0.0.1:{port}", w.keys[0])
        request = held_request(trainer)
        seen, codes = set(), set()
        for _ in range(4):
            peers = [kept.enter_context(poll(port, w.keys[0], request)) for _ in range(2 * CONNECTIONS)]
            codes.add(status(port, "POST", "create_session", w.keys[1], json={"tags": [], "sdk_version": "1"}))
            codes.add(status(port, "GET", "get_server_capabilities", w.keys[1]))
            seen |= {answer_of(peer, 0.05) for peer in peers}
    seen = sorted(seen - {None, 0, 503})
    return f"{', '.join(map(str, seen))}; {', '.join(map(str, sorted(codes)))}"


@attack("a read-only key that ends a session of before a restart, with sampling sessions; one of them samples", "403, sampled")
def reader_after_a_restart(w):
    with tempfile.TemporaryDirectory() as folder:
        with server(w, folder, "127.0.0.1:0") as port:
            trainer = Wire(f"http://127.0.0.1:{port}", w.keys[0])
            session = trainer.session()
            sampler = trainer.sampler(session, 0, base_model="tiny")
        with server(w, folder, "127.0.0.1:0") as port:
            code = status(port, "POST", f"sessions/{session}/finish", w.keys[2], json={})
            again = Wire(f"http://127.0.0.1:{port}", w.keys[0])
            done = again.sampled(sampler, 1, [5, 9, 17], max_tokens=2)
    return f"{code}, {'sampled' if done.sequences else 'nothing'}"


@attack("a download that is read with 20 KiB/s where 1 MiB/s is the least; then a quick one", "cut; whole")
def slow_download(w):
    with tempfile.TemporaryDirectory() as folder, server(
            w, folder, "127.0.0.1:0", "--min-download-rate", "1MiB", "--body-timeout", "1") as port:
        trainer = Wire(f"http://127.0.0.1:{port}", w.keys[0])
        model = trainer.model(trainer.session(), rank=128)
        model.save("large")
        url = httpx.URL(trainer.get(f"training_runs/{model.id}/checkpoints/weights/large/archive", timeout=60).json()["url"])
        size, got, end = len(httpx.get(url, timeout=60).content), 0, time.monotonic() + 12
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.settimeout(60)
            peer.connect(("127.0.0.1", port))
            peer.sendall(f"GET {url.raw_path.decode()} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            with contextlib.suppress(ConnectionResetError):
                while piece := peer.recv(2048 if time.monotonic() < end else 65536):  # at last what is on its way, at once
                    got += len(piece)
                    time.sleep(0.1 if time.monotonic() < end else 0)
        whole = len(httpx.get(url, timeout=60).content) == size
    return f"{'cut' if got < size else 'whole'}; {'whole' if whole else 'cut'}"


@attack("20 requests at once with made-up X-Forwarded-For where an address may have 12; the audit log", "503; its own address")
def made_up_addresses(w):
    address = own_address()
    if address is None or address.startswith("127."):
        print("  (this machine has no second address: who comes from loopback has no such limit)", flush=True)
    made_up = {"X-Forwarded-For": "203.0.113.9", "X-API-Key": w.keys[0], "Host": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as kept:
        with server(w, folder, "0.0.0.0:0", "--max-connections-per-address", "12") as port:
            request = held_request(Wire(f"http://127.0.0.1:{port}", w.keys[0]))
            peers = [kept.enter_context(poll(port, w.keys[0], request, f"X-Forwarded-For: 203.0.113.{i}\r\n", address or "127.0.0.1"))
                     for i in range(20)]
            codes = {answer_of(peer, 0.2) for peer in peers}
            for peer in peers:
                peer.close()
            end = time.monotonic() + 30
            while status(port, "POST", "create_session", None, json={"tags": []}, headers=made_up, host=address or "127.0.0.1") != 200:
                assert time.monotonic() < end, "the address stays refused"
                time.sleep(0.1)
        last = json.loads(pathlib.Path(folder, "audit").read_text().splitlines()[-1])
    limited = 503 if 503 in codes or not address else sorted(codes, key=str)
    return f"{limited}; {'its own address' if last['address'] == (address or '') else last['address']}"
