# SPDX-License-Identifier: Apache-2.0
"""Hostile requests about what the store and its disk keep, as rows of tests/e2e/hostile.py: `REQUESTS`, and `ATTACKS` on a server
with default limits or one of their own, of (what, want, send(world))."""
import concurrent.futures
import pathlib
import tempfile
import time

import httpx

from hostile_own import elsewhere, server
from wire import Wire

COPIES = 12


def told(reply, text):
    """Its status, and whether its message has this text to the end."""
    return f"{reply.status_code}, {'told as it is' if reply.json()['detail'].endswith(text) else reply.text}"


def refused_name(w, name):
    return told(w.model.op("save_weights", path=name), f"name '{name}': want [A-Za-z0-9._-]{{1,255}}, and not dots alone")


def run_without_utf8(w):
    """What is told about a run whose name is no UTF-8 has nothing of how the store is asked."""
    reply = w.wire.get("training_runs/%ff")
    words = [word for word in ("SELECT", "state store", "sqlite", "tenant,") if word.lower() in reply.text.lower()]
    return f"{reply.status_code}, {'no SQL' if not words else reply.text}"


def copies_of_one_number(w):
    """Copies to one number of a session, all at once: how they are answered."""
    path = w.model.save("raced")["path"]
    body = {"source_path": path, "session_id": w.session, "model_seq_id": 9000}

    def copy(_):
        return httpx.post(f"{w.url}/api/v1/copy_weights", json=body, headers={"X-API-Key": w.keys[0]}, timeout=20)

    with concurrent.futures.ThreadPoolExecutor(COPIES) as pool:
        replies = list(pool.map(copy, range(COPIES)))
    assert sum(reply.status_code == 200 for reply in replies) == 1
    assert all(reply.status_code == 200 or "model_seq_id: 9000" in reply.json()["detail"] for reply in replies)
    made = w.wire.create(w.session, 9000)
    return ", ".join(str(code) for code in sorted({reply.status_code for reply in replies})) + f"; {made.status_code}"


def expired_name(w):
    """A save of the name of a checkpoint that expired a moment ago, which is free."""
    assert "path" in w.model.save("brief", ttl_seconds=1)
    time.sleep(1.5)
    return w.future(w.model.op("save_weights", path="brief"))


def copies_beyond_the_disk(w):
    """Copies until --max-disk has no space: the status of the one that does not fit, and what the log has of it."""
    with tempfile.TemporaryDirectory() as folder:
        with server(w, folder, "127.0.0.1:0", "--max-disk", "8MiB") as port:
            wire = Wire(f"http://127.0.0.1:{port}", w.keys[0])
            path = wire.model(wire.session(), 0).save("a")["path"]
            for _ in range(200):
                refused = wire.post("copy_weights", {"source_path": path})
                if refused.status_code != 200:
                    break
            assert "--max-disk" in refused.json()["detail"], refused.text
        errors = "error" in pathlib.Path(folder, "log").read_text().lower()
    return f"{refused.status_code}, {'errors' if errors else 'no error'}"


def samplers_of_a_tenant(w):
    """Sampling sessions of base models beyond what the store keeps, and again once their session has ended."""
    with tempfile.TemporaryDirectory() as folder, server(w, folder, "127.0.0.1:0", "--max-samplers-per-tenant", "50") as port:
        wire = Wire(f"http://127.0.0.1:{port}", w.keys[0])

        def make(session, number):
            return wire.post("create_sampling_session", {"session_id": session, "sampling_session_seq_id": number,
                                                         "base_model": "tiny"}).status_code

        first, second = wire.session(), wire.session()
        codes = {make(first, i) for i in range(60)}
        assert make(second, 0) == 429
        wire.ok(f"sessions/{first}/finish", {})
        end = time.monotonic() + 30
        while (again := make(second, 0)) != 200 and time.monotonic() < end:
            time.sleep(0.5)
    return f"{', '.join(map(str, sorted(codes)))}; {again}"


REQUESTS = [
    ("a run whose name is no UTF-8, and what is told of it", "400, no SQL", run_without_utf8),
    ("a number of a list with %00", "400, told as it is",
     lambda w: told(w.wire.get("training_runs?limit=5%00x"), "got '5\\x00x', want a whole number from 0")),
    ("a save named é", "400, told as it is", lambda w: refused_name(w, "é")),
]
ATTACKS = [
    ("12 copies at once to one number of a session; then a model of that number", "200, 400; 400", copies_of_one_number),
    ("a save of a name that expired a moment ago", "future, result", expired_name),
    elsewhere("copies beyond --max-disk, and the log", "400, no error", copies_beyond_the_disk),
    elsewhere("60 sampling sessions where 50 have space; then one when theirs has ended", "200, 429; 200", samplers_of_a_tenant),
]
