# SPDX-License-Identifier: Apache-2.0
"""Bad days of tests/e2e/chaos.py whose faults are files: archives that somebody changed, and keys and certificates that are
swapped, cut off, or pipes, while a server reads them again and again."""
import concurrent.futures
import contextlib
import hashlib
import io
import os
import pathlib
import random
import signal
import socket
import sqlite3
import ssl
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.parse

import httpx

from lifetimes import Server
from wire import KEY, Model, Wire, ce, wait_until

A = [5, 9, 17, 33, 65, 12, 40, 7]
ARCHIVES = 200
SERVED_AT_ONCE = 6  # each waits for a sweep, most of its time
TEXTS = ["", "../../victim", "/etc", "a/b", ".", "x" * 5000, "a\nb", "\x7f", "alice", "é", "{", "[]", "null", "a\0b", "x" * 70000]
NOT_UTF8 = [b"\xff", b"a\xc3", b"\xed\xa0\x80"]  # as texts, which an SQLite takes as they are
# Names that become parts of paths and parameters: each is tried in each column.
NAMED = [(table, column, value) for table, column in (("sessions", "tenant"), ("sessions", "id"), ("runs", "id"), ("runs", "tenant"),
                                                      ("samplers", "id")) for value in (NOT_UTF8[0], "../../x", "a/b")]
SWEEP_SECONDS = 6.0  # a server sweeps every 5
NUMBERS = [0, -1, 1, 2 ** 31, 2 ** 63 - 1, -2 ** 63, None, 0.5, b"\xff\xfe", 2 ** 52]


def members_of(tar):
    with tarfile.open(tar) as file:
        return [(entry.name, file.extractfile(entry).read()) for entry in file.getmembers()]


def write(path, members):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            file.addfile(entry, io.BytesIO(content))


def with_hashes(members):
    files = [(name, content) for name, content in members if name != "MANIFEST"]
    text = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files)
    return [*files, ("MANIFEST", text.encode())]


@contextlib.contextmanager
def opened(content):
    """The database in these bytes, and what reads its bytes afterwards."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        db = sqlite3.connect(file.name)
        yield db, lambda: pathlib.Path(file.name).read_bytes()


def put_value(db, table, column, value, where=""):
    text = "CAST(? AS TEXT)" if value in NOT_UTF8 else "?"
    db.execute(f"UPDATE {table} SET {column} = {text} {where}", (value,))


def change_database(dice, content):
    """Some row, or the schema, as no server would write it."""
    with opened(content) as (db, after):
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        filled = [table for table in tables if db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0]
        try:
            if dice.random() < 0.2:
                db.execute(dice.choice(["DROP TABLE checkpoints", "CREATE TABLE other (x)", "DELETE FROM meta", "DROP INDEX runs_by_state",
                                        "CREATE VIEW v AS SELECT 1", "ALTER TABLE runs ADD COLUMN extra TEXT",
                                        "CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM checkpoints; END"]))
            else:
                table = dice.choice(filled)
                column = dice.choice([row[1] for row in db.execute(f"PRAGMA table_info({table})")])
                put_value(db, table, column, dice.choice(TEXTS + NUMBERS + NOT_UTF8))
        except sqlite3.Error:
            pass  # it breaks a rule of the schema itself
        db.commit()
        db.close()
        return after()


def with_database(members, change):
    return with_hashes([(name, change(content) if name == "strata.db" else content) for name, content in members])


def with_name(members, table, column, value):
    """One row's name is this, and nothing else is wrong."""
    def change(content):
        with opened(content) as (db, after):
            put_value(db, table, column, value, f"WHERE rowid = (SELECT min(rowid) FROM {table})")
            assert db.total_changes == 1, (table, column)
            db.commit()
            db.close()
            return after()
    return with_database(members, change)


def mutated(dice, whole, members):
    """(what was done, the archive's bytes or its members)."""
    kind = dice.choice(["bytes", "cut", "members", "database", "database", "file"])
    changed = list(members)
    if kind == "bytes":
        content = bytearray(whole)
        for _ in range(dice.randint(1, 8)):
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        return kind, bytes(content)
    if kind == "cut":
        return kind, whole[:dice.randrange(len(whole))]
    i = dice.randrange(len(changed))
    if kind == "members":
        name, content = changed.pop(i)
        dice.choice([lambda: None, lambda: changed.extend([(name, content)] * 2), lambda: changed.append((name + "x", content)),
                     lambda: changed.append(("../" + name, content)), lambda: dice.shuffle(changed)])()
        return kind, with_hashes(changed) if dice.random() < 0.5 else changed
    if kind == "database":
        return kind, with_database(changed, lambda content: change_database(dice, content))
    content = changed[i][1]
    changed[i] = (changed[i][0], content[:dice.randrange(len(content) + 1)])
    return kind, with_hashes(changed)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def session_goes_on(wire, session):
    """A session of the archive: what trains in it can be saved, and it can be finished."""
    path = urllib.parse.quote(session, safe="")
    if wire.post("session_heartbeat", {"session_id": session}).status_code == 200:
        saved = wire.model(session, 77).save("later")
        assert "path" in saved, ("a save in a session of the archive", session, saved)
    done = wire.post(f"sessions/{path}/finish", {})
    assert done.status_code == 200, ("the end of a session of the archive", session, done.status_code, done.text)


def serves_whole(strata, model, data):
    """A folder that was restored: what is in it can be listed, trained on, saved, ended and swept."""
    assert run(strata, "check", "--data", data)[0] == 0, "check refuses what restore took"
    server = Server(strata, model, data, "--memory", "1GiB")
    try:
        begun, wire = time.monotonic(), Wire(server.url, KEY)
        assert wait_until(lambda: wire.get("readyz").status_code == 200, 30), wire.get("readyz").text
        lists = {path: wire.get(path) for path in ("training_runs", "sessions", "usage", "checkpoints")}
        for path, answer in lists.items():
            assert answer.status_code == 200, (path, answer.text)
        for each in lists["training_runs"].json()["training_runs"]:
            answer = wire.get("training_runs/" + urllib.parse.quote(each["training_run_id"], safe=""))
            assert answer.status_code == 200, ("a run that is listed", each["training_run_id"], answer.text)
        assert isinstance(wire.result(wire.model(wire.session()).send([ce(A)])), bytes)
        kept = [entry["tinker_path"] for entry in lists["checkpoints"].json()["checkpoints"] if "/weights/" in entry["tinker_path"]]
        for path in kept[:1]:
            loaded = wire.result(wire.post("load_weights", {"session_id": wire.session(), "model_seq_id": 0, "path": path}))
            assert "error" not in loaded, ("a checkpoint of the archive", path, loaded)
            assert "path" in Model(wire, loaded["model_id"]).save("again"), ("a save of it", path)
        for session in lists["sessions"].json()["sessions"]:
            session_goes_on(wire, session)
        time.sleep(max(0.0, begun + SWEEP_SECONDS - time.monotonic()))
        assert wait_until(lambda: wire.get("readyz").status_code == 200, 30), ("after a sweep", wire.get("readyz").text)
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.process.wait()


def fault_of(strata, model, data):
    """Of a folder that was restored: what is wrong with it, or "". A backup of it is whole as well."""
    try:
        serves_whole(strata, model, data)
        for command in (["backup", "--data", data, "--out", f"{data}.tar"], ["check", "--in", f"{data}.tar"]):
            done = run(strata, *command)
            assert done[0] == 0, (command[0], done[1])
    except AssertionError as fault:
        return str(fault) or repr(fault)
    return ""


def mutated_archives(strata, model, data):
    """Restored from archives that somebody changed: each is refused and leaves nothing, or is served whole."""
    with tempfile.TemporaryDirectory() as served, concurrent.futures.ThreadPoolExecutor(SERVED_AT_ONCE) as pool:
        def serve(number, folder):
            os.rename(folder, f"{served}/{number}")
            return pool.submit(fault_of, strata, model, f"{served}/{number}")
        restore_archives(strata, model, data, serve)


def restore_archives(strata, model, data, serve):
    """`serve(number, folder)`: a future of what is wrong with a folder that was restored, which it takes away."""
    server = Server(strata, model, f"{data}/state", "--memory", "1GiB")
    wire = Wire(server.url, KEY)
    tiny = wire.model(wire.session())
    for number in range(3):
        tiny.save(f"w{number}")
    tiny.save("s", "save_weights_for_sampler")
    wire.sampled(wire.sampler(tiny.id.split(":")[0], 0, base_model="tiny"), 1, A)
    assert server.stop() == 0
    tar = f"{data}/whole.tar"
    assert run(strata, "backup", "--data", f"{data}/state", "--out", tar)[0] == 0
    whole, members, counts, restored = pathlib.Path(tar).read_bytes(), members_of(tar), {}, {}
    seed = int(os.environ.get("CHAOS_SEED", 5))
    print(f"  archives of CHAOS_SEED={seed}", flush=True)
    dice = random.Random(seed)
    victim = pathlib.Path(data, "victim")
    victim.mkdir()
    for number in range(ARCHIVES):
        kind, content = (f"{NAMED[number]}", with_name(members, *NAMED[number])) if number < len(NAMED) else mutated(dice, whole, members)
        archive, other = f"{data}/{number}.tar", f"{data}/other"
        if isinstance(content, bytes):
            pathlib.Path(archive).write_bytes(content)
        else:
            write(archive, content)
        before = sorted(os.listdir(data))
        code, said = run(strata, "restore", "--in", archive, "--data", other)
        assert code in (0, 1, 2) and said, (number, kind, code, said)
        if code == 0:
            restored[f"archive {number}, {kind}"] = serve(number, other)
        assert sorted(os.listdir(data)) == before and victim.is_dir(), (number, kind, os.listdir(data))
        os.unlink(archive)
        kind = "name" if number < len(NAMED) else kind
        counts[kind, code == 0] = counts.get((kind, code == 0), 0) + 1
    taken = sum(count for (_, good), count in counts.items() if good)
    print(f"  {ARCHIVES - taken} of {ARCHIVES} archives refused, {taken} restored: {counts}")
    wrong = [f"{what}: {fault}" for what, done in restored.items() if (fault := done.result())]
    assert not wrong, "restored, but not served whole:\n" + "\n".join(wrong)
    assert 0 < taken < ARCHIVES / 2, counts


def certificate(folder, name, kind):
    """(certificate, key) in PEM."""
    cert, key = pathlib.Path(folder, name + ".cert"), pathlib.Path(folder, name + ".key")
    algorithm = ["-newkey", "rsa:2048"] if kind == "rsa" else ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "req", "-x509", *algorithm, "-nodes", "-days", "1", "-subj", f"/CN={name}", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert.read_text(), key.read_text()


def put(path, text):
    """In one step, as a careful renewal does; or a pipe that nobody writes to, where `text` is null."""
    path.unlink(missing_ok=True)
    if text is None:
        os.mkfifo(path, 0o600)
        return
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)


def reloads(strata, model, data):
    """Certificates of two kinds swapped with SIGHUP between their halves, files cut off or pipes, storms of SIGHUP: every new
    connection is served, soon."""
    pairs = [certificate(data, "one", "rsa"), certificate(data, "two", "ec")]
    cert, key, keys = (pathlib.Path(data, name) for name in ("cert.pem", "key.pem", "keys"))
    line = f"{KEY}\n"
    for path, text in ((cert, pairs[0][0]), (key, pairs[0][1]), (keys, line)):
        put(path, text)
    process = subprocess.Popen(
        [strata, "serve", "--model", f"tiny={model}", "--data", f"{data}/state", "--keys", str(keys), "--memory", "1GiB", "--listen",
         "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key), "--audit", f"{data}/audit"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1)
    stop, faults, waits = threading.Event(), [], []
    try:
        url = next(line.split()[-1] for line in process.stdout if "listening on https://" in line)

        # Each connection has its own: httpx sets ALPN names on the context that it is given, and Python 3.11 lets another thread
        # copy them meanwhile, into a ClientHello that no server can decode.
        def trust():
            return ssl.create_default_context(cadata=pairs[0][0] + pairs[1][0])

        def beat():
            while not stop.is_set():
                begin = time.monotonic()
                try:
                    with httpx.Client(verify=trust(), timeout=20) as client:
                        code = client.get(f"{url}/api/v1/get_server_capabilities", headers={"X-API-Key": KEY}).status_code
                    if code != 200:
                        faults.append(code)
                except httpx.HTTPError as error:
                    faults.append(repr(error))
                waits.append(time.monotonic() - begin)

        clients = [threading.Thread(target=beat, daemon=True) for _ in range(3)]
        for client in clients:
            client.start()
        dice = random.Random(7)
        for _ in range(60):
            pair = dice.choice(pairs)
            steps = [(cert, pair[0]), (key, pair[1]), (keys, line)]
            dice.shuffle(steps)
            for path, text in steps:
                put(path, dice.choice([text, text, None, text[:len(text) // 2], ""]))
                for _ in range(dice.choice([1, 1, 50])):
                    process.send_signal(signal.SIGHUP)
                time.sleep(dice.random() * 0.1)
        for path, text in ((cert, pairs[1][0]), (key, pairs[1][1]), (keys, line)):
            put(path, text)
        end = time.monotonic() + 20
        host, port = url.removeprefix("https://").split(":")
        served = ""
        while served != "two" and time.monotonic() < end:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            with socket.create_connection((host, int(port))) as peer, trust().wrap_socket(peer, server_hostname="localhost") as tls:
                served = dict(part[0] for part in tls.getpeercert()["subject"])["commonName"]
        stop.set()
        for client in clients:
            client.join()
        assert served == "two", "the last certificate is not used"
        assert not faults, faults[:5]
        assert len(waits) > 50 and max(waits) < 5, (len(waits), max(waits))
        print(f"  {len(waits)} connections, the slowest {1e3 * max(waits):.0f} ms")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        stop.set()
        process.kill()
