# SPDX-License-Identifier: Apache-2.0
"""One tenant's crowd in a queue that all use, as rows of tests/e2e/hostile.py: `LIMITED` of tenants with rates,
`ATTACKS`, and `CROWDED` for a server whose keys name 3,000 tenants, of (what, want, send(world))."""
import concurrent.futures
import contextlib
import itertools
import json
import os
import select
import socket
import sqlite3
import threading
import time

import httpx
import zstandard

from wire import ce

MIB = 1 << 20
TENANTS = 3000
TOKENS = [5, 9, 17, 33, 65, 12, 40, 7]


def large_checkpoint(w, name):
    """(its run, the model) of a checkpoint of some MB."""
    model = w.wire.model(w.session, 200 + len(name), rank=128)
    assert "path" in model.save(name), name
    return model


def archives(w):
    """Archives of eighty checkpoints, ordered with a read-only key by clients that do not wait; then another tenant saves."""
    model = large_checkpoint(w, "packed")
    path = f"tinker://{model.id}/weights/packed"
    copies = [w.wire.ok("copy_weights", {"source_path": path, "destination_project_id": "default"})["tinker_path"] for _ in range(80)]

    def order(copy):
        run, kind, name = copy.removeprefix("tinker://").split("/")
        try:
            return httpx.get(f"{w.url}/api/v1/training_runs/{run}/checkpoints/{kind}/{name}/archive", timeout=1,
                             headers={"X-API-Key": w.keys[2]}).status_code
        except httpx.TimeoutException:
            return 0

    with concurrent.futures.ThreadPoolExecutor(80) as pool:
        orders = [pool.submit(order, copy) for copy in copies]
        begin = time.monotonic()
        saved = w.foreign.save("beside_archives")
        took = time.monotonic() - begin
        codes = {one.result() for one in orders}
    assert took < 5, f"another tenant's save took {took:.1f} s"
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    return 429 if 429 in codes and "path" in saved else f"{sorted(codes)}, {saved}"


def unpacked(w):
    """Bodies of 3 MiB of zeros as zstd on 200 connections, again and again; then another tenant's of 12 MiB."""
    zeros = zstandard.ZstdCompressor().compress(bytes(3 * MIB))
    request = w.head("POST /api/v1/forward_backward HTTP/1.1", "Content-Type: application/x-protobuf", "Content-Encoding: zstd",
                     f"Content-Length: {len(zeros)}", body=zeros)
    over = threading.Event()

    def send_on(_):
        while not over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", w.port), timeout=20) as peer:
                    peer.sendall(request)
                    peer.recv(4096)
            except OSError:
                pass

    threads = [threading.Thread(target=send_on, args=(i,), daemon=True) for i in range(200)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    body = zstandard.ZstdCompressor().compress(bytes(12 * MIB))
    code = w.other.http.post("forward_backward", content=body, headers={
        "Content-Type": "application/x-protobuf", "Content-Encoding": "zstd"}).status_code
    over.set()
    for thread in threads:
        thread.join(30)
    return code


def unread_downloads(w):
    """Readers of one signed URL who do not read: how the last of two hundred is answered."""
    model = large_checkpoint(w, "download")
    url = httpx.URL(w.wire.get(f"training_runs/{model.id}/checkpoints/weights/download/archive").json()["url"])
    request = f"GET {url.raw_path.decode()} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    peers, codes = [], []
    for _ in range(200):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", w.port))
        peer.sendall(request)
        peers.append(peer)
    for peer in peers:
        if select.select([peer], [], [], 5)[0]:
            codes.append(int(peer.recv(64)[9:12]))
    for peer in peers:
        peer.close()
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    return ", ".join(str(code) for code in sorted(set(codes)))


def held_bodies(w):
    """Bodies of which the last bytes do not come, by one tenant of 3,000; then another's session, pass, sample and heartbeat."""
    start = bytes(16 * MIB - 100)
    head = w.head("POST /api/v1/forward_backward HTTP/1.1", "Content-Type: application/x-protobuf",
                  f"Content-Length: {16 * MIB}")
    peers = []
    for _ in range(20):
        peers.append(socket.create_connection(("127.0.0.1", w.port)))
        try:
            peers[-1].sendall(head + start)
        except OSError:
            pass  # refused: there is no room for it
    time.sleep(1)
    session = w.other.post("create_session", {"tags": ["x" * 15_000], "sdk_version": "1"})
    done = w.other.result(w.foreign.send([ce(TOKENS)]))
    packed = zstandard.ZstdCompressor().compress(b'{"session_id":"%s"}' % session.json()["session_id"].encode())
    beats = {w.other.http.post("session_heartbeat", content=packed, headers={
        "Content-Type": "application/json", "Content-Encoding": "zstd"}).status_code for _ in range(20)}
    for peer in peers:
        peer.close()
    return f"{session.status_code}, {'result' if isinstance(done, bytes) else done}, {sorted(beats)}"


def samples_at_once(w, count=100, most=256):
    """Samples that may yield 256 tokens each, at once, by a tenant who has 50 a second, 500 at first."""
    sampler = w.carrie.sampler(w.carrie.session(), 0, base_model="tiny")
    body = {"num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": []}]}, "sampling_session_id": sampler,
            "sampling_params": {"max_tokens": most, "stop": []}}

    def send(number, tokens=(5,)):
        body["prompt"]["chunks"][0]["tokens"] = list(tokens)
        return httpx.post(f"{w.url}/api/v1/asample", json={**body, "seq_id": number}, headers={"X-API-Key": w.carrie.key}, timeout=30)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        replies = list(pool.map(send, range(1, 1 + count)))
    taken = sum(reply.status_code == 200 for reply in replies)
    refused = {(reply.status_code, int(reply.headers["retry-after"]) > 0) for reply in replies if reply.status_code != 200}
    assert refused == {(429, True)} and all("--rate carrie:" in reply.text for reply in replies if reply.status_code != 200), refused
    return 429 if 0 < taken * most <= 500 + most else f"{taken} taken"


def long_prompts(w):
    """Prompts of 8 tokens by a tenant who has one a second, ten at first: the second one, and how long to wait for it."""
    sampler = w.carrie.sampler(w.carrie.session(), 0, base_model="tiny")
    replies = [w.carrie.sample(sampler, number, TOKENS, max_tokens=1) for number in (1, 2)]
    assert 1 <= int(replies[1].headers["retry-after"]) <= 8, replies[1].headers
    return replies[1].status_code


def sessions_without_rights(w, count=90, at_once=50):
    """Sessions of a key that may only read, as many as it gets; then one of a key that trains."""
    request = w.head("POST /api/v1/create_session HTTP/1.1", "Content-Type: application/json", "Content-Length: 2", body=b"{}")
    request, codes = request.replace(w.keys[0].encode(), w.keys[2].encode()), set()
    with socket.create_connection(("127.0.0.1", w.port), timeout=30) as peer, peer.makefile("rb") as answers:
        while count and codes <= {200}:
            count -= 1
            peer.sendall(request * at_once)
            for _ in range(at_once):
                codes.add(int(answers.readline()[9:12]))
                head = [line.lower() for line in iter(answers.readline, b"\r\n")]
                answers.read(next(int(line.split(b":")[1]) for line in head if line.startswith(b"content-length:")))
    return f"{', '.join(str(code) for code in sorted(codes - {200}))}; {w.wire.post('create_session', {'tags': []}).status_code}"


def all_models(w, most=100):
    """Models of one tenant, as many as it gets; then one of another."""
    session, made, told = w.wire.session(), 0, {}
    while made < most and "error" not in told:
        told = w.wire.result(w.wire.create(session, made, rank=1))
        made += 1
    other = w.other.session()
    another = w.other.result(w.other.create(other, rank=1))
    w.wire.ok(f"sessions/{session}/finish", {})
    w.other.ok(f"sessions/{other}/finish", {})
    return f"{'for other tenants' if 'for other tenants' in told.get('error', '') else told}; {'made' if 'error' not in another else another}"


@contextlib.contextmanager
def crowd(w, request, count):
    """The codes of a request that so many connections send over and over."""
    over, codes = threading.Event(), set()

    def send_on(_):
        while not over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", w.port), timeout=20) as peer:
                    peer.sendall(request)
                    codes.add(int(peer.recv(64)[9:12]))
            except (OSError, ValueError):
                pass

    threads = [threading.Thread(target=send_on, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield codes
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def page_readers(w, count=200, runs=8, steps=40):
    """The page of runs with curves, with a read-only key on 200 connections; then another tenant's session."""
    models = [w.wire.model(w.session, 240 + i, rank=1) for i in range(runs)]
    for _ in range(steps):
        for model in models:
            model.send([ce(TOKENS)])
        for sent in [model.send_step(learning_rate=1e-4) for model in models]:
            w.wire.result(sent)
    request = w.head("GET /page/overview HTTP/1.1").replace(w.keys[0].encode(), w.keys[2].encode())
    with crowd(w, request, count) as codes:
        time.sleep(3)
        code = w.other.post("create_session", {"tags": []}).status_code
    for model in models:
        w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    return f"{200 if 200 in codes else sorted(codes)}; {code}"


def listers(w, count=200, copies=80):
    """Lists of 80 checkpoints of 16 KiB of metadata each, with a read-only key on 200 connections; then another tenant's session.
    A page of theirs ends after 1 MiB, and its cursor says so."""
    model = w.wire.model(w.session, 230, rank=1)
    model.save("listed", user_metadata={f"k{i}": "x" * 480 for i in range(32)})
    path = f"tinker://{model.id}/weights/listed"
    for _ in range(copies):
        w.wire.ok("copy_weights", {"source_path": path})
    page = w.wire.get("checkpoints?limit=1000").json()
    shown, cursor = len(page["checkpoints"]), page["cursor"]
    assert 50 < shown == cursor["limit"] < copies < cursor["total_count"], cursor
    request = w.head("GET /api/v1/checkpoints?limit=1000 HTTP/1.1").replace(w.keys[0].encode(), w.keys[2].encode())
    with crowd(w, request, count) as codes:
        time.sleep(3)
        code = w.other.post("create_session", {"tags": []}).status_code
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    assert codes <= {200, 429, 503}, codes
    return f"{429 if 429 in codes else sorted(codes)}; {code}"


ROWS_AT_ONCE = 20  # in a transaction: the server waits for each


def put_copies(data, table, copies):
    """Rows, put into the database as so many calls would."""
    with contextlib.closing(sqlite3.connect(f"{data}/strata.db", timeout=30)) as store:
        while rows := list(itertools.islice(copies, ROWS_AT_ONCE)):
            with store:
                for row in rows:
                    store.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", list(row.values()))


def take_out(data, table, where, values):
    with contextlib.closing(sqlite3.connect(f"{data}/strata.db", timeout=30)) as store:
        deleted = 1
        while deleted:
            with store:
                deleted = store.execute(f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {where} LIMIT {ROWS_AT_ONCE})",
                                        values).rowcount


def row_of(data, table, id_name, id_value):
    """The first row of that id, by the names of its columns."""
    with contextlib.closing(sqlite3.connect(f"{data}/strata.db", timeout=30)) as store:
        names = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
        return dict(zip(names, store.execute(f"SELECT * FROM {table} WHERE {id_name} = ?", [id_value]).fetchone()))


def many_checkpoints(w, count=1500):
    """A run of 1,500 checkpoints of 16 KiB of metadata each, put into the database as so many saves would; who asks for no page."""
    model = w.wire.model(w.session, 231, rank=1)
    model.save("first")
    data = w.process.args[w.process.args.index("--data") + 1]
    text = json.dumps({f"k{i}": "x" * 480 for i in range(32)})
    row = row_of(data, "checkpoints", "run_id", model.id)
    put_copies(data, "checkpoints",
               ({**row, "id": os.urandom(16).hex(), "name": f"n{i}", "number": row["number"] + 1 + i, "user_metadata": text} for i in range(count)))
    reply = w.reader.get(f"training_runs/{model.id}/checkpoints")
    page = w.reader.get(f"training_runs/{model.id}/checkpoints?limit=10&offset=1495")
    take_out(data, "checkpoints", "run_id = ? AND name <> 'first'", [model.id])
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    shown, cursor = reply.json()["checkpoints"], reply.json()["cursor"]
    assert cursor == {"offset": 0, "limit": len(shown), "total_count": count + 1} and len(page.json()["checkpoints"]) == 6, cursor
    return f"{reply.status_code}, {'the newest, to 16 MiB' if len(reply.content) <= 17 * MIB else len(reply.content)}"


def session_of_many_runs(w, count=3000):
    """A session of 3,000 runs of 16 KiB of metadata each, put into the database; to another project, while another begins sessions."""
    session = w.wire.ok("create_session", {"tags": []})["session_id"]
    model = w.wire.model(session, 0, rank=1)
    data = w.process.args[w.process.args.index("--data") + 1]
    text = json.dumps({f"k{i}": "x" * 480 for i in range(32)})
    row = row_of(data, "runs", "id", model.id)
    put_copies(data, "runs", ({**row, "id": f"{session}:train:{i}", "model_seq": i, "number": row["number"] + i, "state": "unloaded",
                               "user_metadata": text} for i in range(1, count)))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        moved = pool.submit(lambda: w.wire.http.put(f"sessions/{session}/project", json={"project_id": "elsewhere"}, timeout=60).status_code)
        codes = set()
        while not moved.done():
            codes.add(w.other.post("create_session", {"tags": []}).status_code)
    with contextlib.closing(sqlite3.connect(f"{data}/strata.db", timeout=30)) as store:
        left = store.execute("SELECT COUNT(*) FROM runs WHERE session_id = ? AND project_id <> 'elsewhere'", [session]).fetchone()[0]
    take_out(data, "runs", "session_id = ? AND model_seq > 0", [session])
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    return f"{moved.result()}, {left} left; {', '.join(str(code) for code in sorted(codes))}"


def deleted_at_once(w, count=200):
    """Two hundred checkpoints of one tenant that are deleted; then another tenant saves."""
    model = w.wire.model(w.session, 233, rank=1)
    path = model.save("one")["path"]
    copies = [w.wire.ok("copy_weights", {"source_path": path, "destination_project_id": "default"})["tinker_path"] for _ in range(count)]
    for copy in copies:
        run, kind, name = copy.removeprefix("tinker://").split("/")
        assert w.wire.http.delete(f"training_runs/{run}/checkpoints/{kind}/{name}").status_code == 200, copy
    time.sleep(5)  # a sweep is due
    begin = time.monotonic()
    saved = w.foreign.save("beside_a_sweep")
    took = time.monotonic() - begin
    assert took < 2, f"another tenant's save took {took:.1f} s"
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    return 200 if "path" in saved else saved


def numbers_far_ahead(w, count=3000):
    """Operations that are refused, with numbers far ahead; then the model's next one."""
    model = w.wire.model(w.session, 234, rank=1)
    codes = {w.wire.post("optim_step", {"model_id": model.id, "seq_id": 1000 + 7 * i, "adam_params": {"eps": 0}}).status_code
             for i in range(count)}
    done = model.wire.result(model.send([ce(TOKENS)]))
    w.wire.result(w.wire.post("unload_model", {"model_id": model.id}))
    return f"{', '.join(str(code) for code in codes)}; {'result' if isinstance(done, bytes) else done}"


LIMITED = [
    ("100 samples at once that may yield five times what their tenant has", 429, samples_at_once),
    ("a second prompt beyond its tenant's tokens a second", 429, long_prompts),
]
ATTACKS = [
    ("80 archives ordered with a read-only key, and another tenant's save", 429, archives),
    ("200 connections with zeros as zstd, and another tenant's body of 12 MiB", 400, unpacked),
    ("200 readers of one signed URL who do not read", "200, 429", unread_downloads),
    ("200 connections that list with a read-only key, and another tenant's session", "429; 200", listers),
    ("200 connections that read the page with a read-only key, and another tenant's session", "200; 200", page_readers),
    ("all checkpoints of a run that has 1,500, of 16 KiB each", "200, the newest, to 16 MiB", many_checkpoints),
    ("all the sessions that a read-only key gets, then one of a key that trains", "429; 200", sessions_without_rights),
    ("a session of 3,000 runs to another project, and another tenant's sessions", "200, 0 left; 200", session_of_many_runs),
    ("200 checkpoints deleted at once, and another tenant's save", 200, deleted_at_once),
    ("3,000 refused operations with numbers far ahead, and the next one", "400; result", numbers_far_ahead),
    ("all the models that one tenant gets, then one of another", "for other tenants; made", all_models),
]
CROWDED = [("bodies held back by one of 3,000 tenants, and another's session, training and heartbeats", "200, result, [200]", held_bodies)]
