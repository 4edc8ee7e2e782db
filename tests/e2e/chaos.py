# SPDX-License-Identifier: Apache-2.0
"""Bad days of a server, one after the other: a frozen process, a full disk, a folder that is not mounted, queues that
are long, an end in the middle of work. After each the server is well, and nothing acknowledged is lost.

usage: chaos.py STRATA MODEL_DIR [SECONDS, 0: each once] [SEED]
SEED orders the days. Archives are changed by CHAOS_SEED, the time where it is not given; it is printed.
"""
import errno
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

import httpx

from chaos_files import mutated_archives, reloads
from chaos_reads import hung_reads, hung_starts, pipes
from faults import Faults, Postgres
from lifetimes import Server
from wire import KEY, Model, Wire, ce, wait_until

A = [5, 9, 17, 33, 65, 12, 40, 7]


def start(strata, model, data, *options, **process):
    """A server whose writes beyond a limit fail instead of killing it: see full()."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        return Server(strata, model, data, "--memory", "1GiB", *options, restore_signals=False, **process)
    finally:
        signal.signal(signal.SIGXFSZ, before)


def full(server, is_full):
    """No file of the server can grow any more, as on a full disk; or it can again."""
    hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 if is_full else hard, hard))


def status(wire, path):
    return wire.get(path).status_code


def frozen(strata, model, data):
    """Stopped for longer than every time-out: no session ends, no gap is given up."""
    server = start(strata, model, data, "--session-timeout", "6", "--gap-timeout", "6")
    wire = Wire(server.url, KEY)
    session = wire.session()
    tiny = wire.model(session)
    held = tiny.send([ce(A)], seq=2)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(12)
    server.process.send_signal(signal.SIGCONT)
    beat = wire.post("session_heartbeat", {"session_id": session})
    assert beat.status_code == 200, (beat.status_code, beat.text)
    tiny.send([ce(A)], seq=1)
    assert isinstance(wire.result(held), bytes), "the model was lost"
    assert wait_until(lambda: status(wire, "readyz") == 200)
    assert server.stop() == 0


def audit_lines(server, outcome):
    for line in httpx.get(server.metrics_url).text.splitlines():
        if line.startswith(f'strata_audit_lines_total{{outcome="{outcome}"}}'):
            return float(line.split()[1])
    raise AssertionError("no count of audit lines")


def full_disk(strata, model, data):
    """What needs the disk is told to come again; everything else goes on, and all of it when there is room again."""
    audit = pathlib.Path(data, "audit")
    server = start(strata, model, data, "--poll-hold", "2", "--session-timeout", "8", "--audit", str(audit))
    wire = Wire(server.url, KEY)
    session, silent = wire.session(), wire.session()
    tiny = wire.model(session)
    kept = tiny.save("kept")["path"]
    alive = threading.Event()

    def beat():
        while not alive.wait(1):
            assert wire.post("session_heartbeat", {"session_id": session}).status_code == 200

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    full(server, True)
    refused = Wire(server.url, KEY).post("create_session", {"tags": []})
    assert refused.status_code == 503 and refused.headers["retry-after"], refused.text
    assert tiny.save("lost")["category"] == "server"
    assert isinstance(wire.result(tiny.send([ce(A)])), bytes)
    held = tiny.send([ce(A)], seq=99).json()["request_id"]
    assert wait_until(lambda: status(wire, "readyz") == 503, 15), "readiness saw nothing"
    assert audit_lines(server, "dropped") > 0
    begin = time.monotonic()
    assert wire.post("retrieve_future", {"request_id": held}).status_code == 408
    assert time.monotonic() - begin < 5, "the poll was not ended"
    assert status(wire, "healthz") == 200
    full(server, False)
    assert wait_until(lambda: status(wire, "readyz") == 200, 15), "readiness stayed red"
    time.sleep(10)  # asking would be a sign of life
    assert wire.post("session_heartbeat", {"session_id": silent}).status_code == 410
    assert "error" not in tiny.save("again")
    assert wait_until(lambda: "save_weights" in audit.read_text().splitlines()[-1])
    whole = [line for line in audit.read_text().splitlines() if line.endswith("}")]
    assert all(json.loads(line)["tenant"] == "local" for line in whole)
    audit.rename(str(audit) + ".1")
    server.process.send_signal(signal.SIGHUP)
    assert wait_until(audit.exists)
    alive.set()
    beats.join()
    server.stop()
    server = start(strata, model, data)
    wire = Wire(server.url, KEY)
    loaded = wire.result(wire.post("load_weights", {"session_id": wire.session(), "model_seq_id": 0, "path": kept}))
    Model(wire, loaded["model_id"]).run([ce(A)])
    assert server.stop() == 0


def unmounted(strata, model, data):
    """The checkpoints' disk is not there at a start: refused, nothing destroyed."""
    server = start(strata, model, data)
    wire = Wire(server.url, KEY)
    tiny = wire.model(wire.session())
    paths = [tiny.save(f"c{i}")["path"] for i in range(4)]
    assert server.stop() == 0
    folder, elsewhere = pathlib.Path(data, "checkpoints"), pathlib.Path(data, "unmounted")
    folder.rename(elsewhere)
    done = subprocess.run([strata, "serve", "--model", f"tiny={model}", "--data", data, "--listen", "127.0.0.1:0",
                           "--metrics-listen", "127.0.0.1:0", "--no-keys", "--memory", "1GiB"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "--accept-loss" in done.stderr, (done.returncode, done.stderr)
    for left in folder.rglob("*"):
        assert left.is_dir(), left
    folder.rmdir()
    elsewhere.rename(folder)
    server = start(strata, model, data)
    wire = Wire(server.url, KEY)
    for path in paths:
        assert wire.post("weights_info", {"tinker_path": path}).status_code == 200, path
    assert server.stop() == 0


def long_queue(strata, model, data):
    """Thousands of operations behind a missing one: bounded, and ended at once."""
    server = start(strata, model, data, "--max-queued-operations", "4000")
    wire = Wire(server.url, KEY)
    session = wire.session()
    tiny = wire.model(session)
    codes = [tiny.send_step(seq=seq).status_code for seq in range(2, 4010)]
    assert codes.count(429) == 8, codes.count(429)
    begin = time.monotonic()
    assert wire.post(f"sessions/{session}/finish", {}).status_code == 200
    assert time.monotonic() - begin < 2, "ending the queue took long"
    assert server.stop() == 0


def many_files(strata, model, data):
    """Hundreds of saves and loads in line: another client's sample waits for none of them."""
    server = start(strata, model, data)
    wire, other = Wire(server.url, KEY), Wire(server.url, KEY)
    tiny = wire.model(wire.session())
    path = tiny.save("kept")["path"]
    sampler = other.sampler(other.session(), 0, base_model="tiny")
    line = [tiny.op("load_weights", path=path, optimizer=True) for _ in range(150)]
    line += [tiny.op("save_weights", path=f"s{i}") for i in range(150)]
    worst = 0.0
    for number in range(10):
        begin = time.monotonic()
        other.sampled(sampler, number, A)
        worst = max(worst, time.monotonic() - begin)
    for submission in line:
        assert "error" not in wire.result(submission)
    assert server.stop() == 0
    print(f"chaos: slowest sample beside 300 saves and loads {1000 * worst:.0f} ms")
    assert worst < 1.5, worst


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def copied(strata, model, data):
    """Backups beside a client that saves and deletes: each is whole, and what was there before it is in it."""
    server = start(strata, model, os.path.join(data, "state"))
    wire = Wire(server.url, KEY)
    tiny = wire.model(wire.session())
    kept = tiny.save("kept")["path"]
    stop = threading.Event()

    def churn():
        number = 0
        while not stop.is_set():
            number += 1
            assert "error" not in tiny.save(f"c{number}")
            done = wire.http.delete(f"training_runs/{tiny.id}/checkpoints/weights/c{number}")
            assert done.status_code == 200, done.text

    client = threading.Thread(target=churn, daemon=True)
    client.start()
    try:
        for number in range(5):
            tar, other = os.path.join(data, f"{number}.tar"), os.path.join(data, f"restored{number}")
            for command in (["backup", "--data", f"{data}/state", "--out", tar], ["check", "--data", f"{data}/state"],
                            ["restore", "--in", tar, "--data", other], ["check", "--data", other]):
                code, said = run(strata, *command)
                assert code == 0, (command, said)
            time.sleep(1)
    finally:
        stop.set()
        client.join()
    assert server.stop() == 0
    server = start(strata, model, other)
    wire = Wire(server.url, KEY)
    loaded = wire.result(wire.post("load_weights", {"session_id": wire.session(), "model_seq_id": 0, "path": kept}))
    Model(wire, loaded["model_id"]).run([ce(A)])
    assert server.stop() == 0
    records = pathlib.Path(other, "checkpoints").rglob("strata.json")
    victim = next(record for record in records if json.loads(record.read_text())["path"] == kept).with_name(
        "adapter_model.safetensors")
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    code, said = run(strata, "check", "--data", other)
    assert code == 2 and str(victim) in said, (code, said)


def socket_file(strata, model, data):
    """A unix socket whose server was killed is taken over by the next one, and gone with the last."""
    path = os.path.join(data, "s")
    options = ["--listen", f"unix:{path}", "--socket-mode", "0660"]
    for end in (signal.SIGKILL, signal.SIGTERM):
        server = start(strata, model, os.path.join(data, "state"), *options)
        assert server.url == f"unix:{path}" and os.stat(path).st_mode & 0o777 == 0o660
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost/api/v1/") as http:
            for _ in range(3):
                made = http.post("create_session", json={"tags": []})
                assert made.status_code == 200, made.text
        if end == signal.SIGTERM:
            second = subprocess.run([strata, "serve", "--model", f"tiny={model}", "--data", f"{data}/other", "--no-keys", *options,
                                     "--metrics-listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
            assert second.returncode == 2 and "another server is running there" in second.stderr, second.stderr
        server.stop(end)
        assert os.path.exists(path) == (end == signal.SIGKILL)


def ends(strata, model, data):
    """The exit status says whether accepted work was dropped."""
    for how_many, wanted in ((0, 0), (1, 3)):
        server = start(strata, model, data)
        wire = Wire(server.url, KEY)
        tiny = wire.model(wire.session())
        for _ in range(how_many):
            tiny.send([ce(A)], seq=9)
        assert server.stop() == wanted, how_many


def load(wire, path):
    """The checkpoint is there and its weights train on."""
    loaded = wire.result(wire.post("load_weights", {"session_id": wire.session(), "model_seq_id": 0, "path": path}))
    assert "error" not in loaded, (path, loaded)
    Model(wire, loaded["model_id"]).run([ce(A)])


class Heartbeats:
    """One every 50 ms from a client of its own; seconds each took."""

    def __init__(self, url, session):
        self.wire, self.session, self.seconds, self.fault = Wire(url, KEY), session, [], None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over.wait(0.05):
            begin = time.monotonic()
            done = self.wire.post("session_heartbeat", {"session_id": self.session})
            self.seconds.append(time.monotonic() - begin)
            if done.status_code != 200:
                self.fault = done.text

    def stop(self):
        wait_until(lambda: len(self.seconds) > 10, 10)  # however soon the bad day is over
        self.over.set()
        self.thread.join()
        assert self.fault is None, self.fault
        assert len(self.seconds) > 10
        return sorted(self.seconds)


def faulty_disk(strata, model, data):
    """Writes, syncs, renames and new files fail now and then, or take long. What was acknowledged is there after a kill."""
    faults = Faults(data)
    state = os.path.join(data, "state")
    server = start(strata, model, state, env=faults.environment())
    wire = Wire(server.url, KEY)
    session = wire.session()
    tiny = wire.model(session)
    beats = Heartbeats(server.url, session)
    saved, refused, number = [tiny.save("before")["path"]], 0, 0
    for fault in ({"write_every": 43}, {"write_every": 31, "write_errno": errno.EIO}, {"sync_every": 17}, {"rename_every": 5},
                  {"create_every": 7}, {"sync_delay_ms": 400}):
        faults.set(**fault)
        for _ in range(6):
            number += 1
            sent = tiny.op("save_weights", path=f"c{number}")
            assert sent.status_code in (200, 503), (fault, sent.status_code, sent.text)
            if sent.status_code == 503:  # the number is not used up, so it is sent again
                refused += 1
                tiny.seq -= 1
                continue
            done = wire.result(sent)
            assert "path" in done or done["category"] == "server", (fault, done)
            refused += "path" not in done
            saved += [done["path"]] if "path" in done else []
            assert isinstance(wire.result(tiny.send([ce(A)])), bytes), fault
        faults.set()
    assert wait_until(lambda: status(wire, "readyz") == 200, 15), "readiness stayed red"
    seconds = beats.stop()
    late = seconds[len(seconds) * 99 // 100]
    assert refused >= 5 and len(saved) >= 10, (refused, len(saved))
    assert late < 0.3, f"a heartbeat waited {late:.2f} s for the disk"
    server.stop(signal.SIGKILL)
    code, said = run(strata, "check", "--data", state)
    assert code == 0, said
    server = start(strata, model, state)
    wire = Wire(server.url, KEY)
    for path in saved:
        load(wire, path)
    assert server.stop() == 0
    print(f"chaos: {refused} saves failed, {len(saved)} acknowledged ones are there; p99 of heartbeats {1000 * late:.0f} ms")


def jumping_clock(strata, model, data):
    """The wall clock jumps ten days ahead for a while and back: nothing with a lifetime is lost."""
    faults = Faults(data)
    server = start(strata, model, os.path.join(data, "state"), "--session-timeout", "8", env=faults.environment())
    wire = Wire(server.url, KEY)
    session = wire.session()
    tiny = wire.model(session)
    path = tiny.save("kept", ttl_seconds=3600)["path"]
    for days in (10, -10):
        faults.set(clock_offset=days * 86400)
        for _ in range(6):  # over several sweeps
            assert wire.post("session_heartbeat", {"session_id": session}).status_code == 200
            assert isinstance(wire.result(tiny.send([ce(A)])), bytes)
            time.sleep(1)
        assert status(wire, "readyz") == 200
    faults.set()
    load(wire, path)
    assert "error" not in tiny.save("after")
    assert server.stop() == 0


def killed_postgres(strata, model, data):
    """The database is killed and comes back: nobody's training notices, and what was acknowledged is there."""
    database = Postgres(data)
    server = start(strata, model, os.path.join(data, "state"), "--db", database.url)
    wire = Wire(server.url, KEY)
    session = wire.session()
    tiny = wire.model(session)
    saved = [tiny.save("before")["path"]]
    assert wait_until(lambda: status(wire, "readyz") == 200), "readiness never came"
    for number in range(3):
        beats = Heartbeats(server.url, session)
        late = tiny.op("save_weights", path=f"late{number}")
        database.kill()
        assert isinstance(wire.result(tiny.send([ce(A)])), bytes)
        late = wire.result(late)
        saved += [late["path"]] if "path" in late else []
        refused = Wire(server.url, KEY).post("create_session", {"tags": []})
        assert refused.status_code == 503 and refused.headers["retry-after"], refused.text
        assert wait_until(lambda: status(wire, "readyz") == 503, 15), "readiness saw nothing"
        assert status(wire, "healthz") == 200
        database.start()
        assert wait_until(lambda: status(wire, "readyz") == 200, 30), "readiness stayed red"
        seconds = beats.stop()
        assert seconds[len(seconds) * 99 // 100] < 0.5, seconds[-5:]
        saved.append(tiny.save(f"after{number}")["path"])
    server.stop(signal.SIGKILL)
    server = start(strata, model, os.path.join(data, "state"), "--db", database.url)
    wire = Wire(server.url, KEY)
    for path in saved:
        load(wire, path)
    assert server.stop() == 0
    database.kill()


def hung_postgres(strata, model, data):
    """The database hangs, its connections stay: what needs it is told to come again, and everything else is answered within a
    second. What expired meanwhile has ended when it is back."""
    database = Postgres(data)
    server = start(strata, model, os.path.join(data, "state"), "--db", database.url, "--session-timeout", "6")
    wire = Wire(server.url, KEY)
    session, silent = wire.session(), wire.session()
    tiny = wire.model(session)
    done = tiny.send([ce(A)])
    wire.result(done)
    waits, codes, over = {}, set(), threading.Event()

    def timed(what, ask):
        http = httpx.Client(timeout=30, headers={"X-API-Key": KEY})
        while not over.wait(0.02):
            begin = time.monotonic()
            code = ask(http).status_code
            waits.setdefault(what, []).append(time.monotonic() - begin)
            if what == "create_session":
                codes.add(code)
            else:
                assert code == 200 or (code == 503 and what.startswith("readyz")), (what, code)

    def post(path, body):
        return lambda http: http.post(f"{server.url}/api/v1/{path}", json=body)
    asked = {"heartbeat": post("session_heartbeat", {"session_id": session}),
             "poll": post("retrieve_future", {"request_id": done.json()["request_id"]}),
             "readyz": lambda http: http.get(f"{server.url}/api/v1/readyz"),
             "readyz of the metrics": lambda http: http.get(server.metrics_url.replace("/metrics", "/readyz")),
             "metrics": lambda http: http.get(server.metrics_url)}
    clients = [(what, ask) for what, ask in asked.items()] + [("create_session", post("create_session", {"tags": []}))] * 16
    database.freeze(True)
    threads = [threading.Thread(target=timed, args=client, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    time.sleep(1)
    assert isinstance(wire.result(tiny.send([ce(A)])), bytes), "training stopped"
    assert wait_until(lambda: status(wire, "readyz") == 503, 15), "readiness saw nothing"
    time.sleep(8)
    during = {what: max(list(seconds)) for what, seconds in waits.items() if what != "create_session"}
    assert codes == {503}, codes
    database.freeze(False)
    assert wait_until(lambda: status(wire, "readyz") == 200, 15), "readiness stayed red"
    assert wait_until(lambda: 200 in codes), "no session is made any more"
    assert wait_until(lambda: ended(database, silent)), "a session that fell silent did not end"
    over.set()
    for thread in threads:
        thread.join()
    assert set(during) == set(asked) and max(during.values()) < 1, during
    load(wire, tiny.save("after")["path"])
    assert server.stop() == 0
    database.kill()
    print("chaos: beside a hung database at most " + ", ".join(f"{what} {1e3 * most:.0f} ms" for what, most in during.items()))


def ended(database, session):
    """Whether the store has the session's end: asking the server would be a sign of life."""
    done = subprocess.run([database.PROGRAMS + "/psql", "-h", database.folder, "-U", "strata", "-d", "postgres", "-Atc",
                           f"SELECT state FROM sessions WHERE id = '{session}'"], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "timed_out"


def slow_start(strata, model, data):
    """A signal while models load from a slow disk ends the process at once; nothing was begun, so nothing is dropped."""
    faults = Faults(data)
    faults.set(read_delay_ms=500)
    process = subprocess.Popen([strata, "serve", "--model", f"tiny={model}", "--data", f"{data}/state", "--no-keys", "--listen",
                                "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=faults.environment())
    time.sleep(1)
    assert process.poll() is None
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "listening" not in said, (process.returncode, said)
    assert time.monotonic() - begin < 1, "the signal waited for the models"


def slow_loads(strata, model, data):
    """One tenant's weights are read from a slow disk: what is behind the load waits for it, and nobody else does."""
    faults = Faults(data)
    server = start(strata, model, data, env=faults.environment())
    owner, other = Wire(server.url, KEY), Wire(server.url, KEY)
    session = other.session()
    loads, goes_on = owner.model(owner.session()), other.model(session)
    sampler = other.sampler(session, 1, base_model="tiny")
    path = loads.save("one")["path"]
    faults.set(read_delay_ms=100)
    load = loads.op("load_weights", path=path, optimizer=True).json()
    behind = loads.send([ce(A)]).json()
    done, most, number = [], 0.0, 0
    thread = threading.Thread(target=lambda: done.append(owner.result(load)))
    thread.start()
    while not done:
        begin, number = time.monotonic(), number + 1
        other.sampled(sampler, number, A)
        goes_on.run([ce(A)])
        most = max(most, time.monotonic() - begin)
    faults.set()
    thread.join()
    assert number > 2 and most < 2, (number, most)
    assert "error" not in done[0], done
    assert isinstance(owner.result(behind), bytes)
    assert server.stop() == 0


def hung_file(strata, model, data):
    """A save waits for a disk that hangs: SIGTERM ends the server all the same, and the next one has what was saved."""
    faults = Faults(data)
    server = start(strata, model, data, "--shutdown-timeout", "1s", env=faults.environment())
    wire = Wire(server.url, KEY)
    tiny = wire.model(wire.session())
    kept = tiny.save("kept")["path"]
    for signals in (1, 2):
        faults.set(sync_delay_ms=600_000)
        tiny.op("save_weights", path="hangs")
        time.sleep(0.5)
        begin = time.monotonic()
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        code = server.process.wait(30)
        took = time.monotonic() - begin
        assert code == 3 and took < (15 if signals == 1 else 6), (code, took)
        faults.set()
        server = start(strata, model, data, "--shutdown-timeout", "1s", env=faults.environment())
        wire = Wire(server.url, KEY)
        assert wire.post("weights_info", {"tinker_path": kept}).status_code == 200
        tiny = wire.model(wire.session())
    assert server.stop() == 0


def nobody_reads_the_log(strata, model, data):
    """The reader of its log goes away: the server goes on."""
    reader, writer = os.pipe()
    server = Server(strata, model, data, "--memory", "1GiB", stderr=writer, env={**os.environ, "STRATA_LOG": "3"})
    os.close(writer)
    os.close(reader)
    wire = Wire(server.url, KEY)
    tiny = wire.model(wire.session())
    assert isinstance(wire.result(tiny.send([ce(A)])), bytes)
    assert server.stop() == 0


DAYS = [frozen, full_disk, unmounted, long_queue, many_files, copied, socket_file, ends, faulty_disk, jumping_clock,
        killed_postgres, hung_postgres, slow_start, slow_loads, hung_file, nobody_reads_the_log, mutated_archives, reloads, pipes,
        hung_reads, hung_starts]


def main():
    strata, model = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0
    if seconds > 0:  # over and over: others each time
        os.environ.setdefault("CHAOS_SEED", str(int(time.time())))
    dice = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    end = time.monotonic() + seconds
    count = 0
    while True:
        for day in dice.sample(DAYS, len(DAYS)):
            with tempfile.TemporaryDirectory() as data:
                begin = time.monotonic()
                day(strata, os.path.realpath(model), data)
                count += 1
                print(f"chaos: {day.__name__} {time.monotonic() - begin:.1f} s", flush=True)
        if time.monotonic() >= end:
            break
    print(f"chaos: {count} bad days survived")


if __name__ == "__main__":
    main()
