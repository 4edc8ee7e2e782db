# SPDX-License-Identifier: Apache-2.0
"""Another tenant of a server under attack, for tests/e2e/hostile.py: its heartbeats are timed in one process, and another one trains
and samples the same again and again, which must give the same bits as before the first attack."""
import multiprocessing
import time

import httpx

from wire import Wire, arrays, ce, pb

A = [5, 9, 17, 33, 65, 12, 40, 7]
MIB = 1 << 20
HANGS = 45.0  # seconds after which something is not slow, but hangs


def memory(pid):
    """Anonymous bytes of a process."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


def persist(send):
    """The answer to a request that is sent again as a client does: when it was told to, or its connection was closed."""
    end = time.monotonic() + HANGS
    while True:
        try:
            reply = send()
            if reply.status_code not in (408, 429, 503) or time.monotonic() > end:
                return reply
        except httpx.TransportError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


class Partner:
    """A process of its own that answers what it is sent over a pipe; where it broke, asking it fails."""

    def __init__(self, work, *arguments):
        self.pipe, inside = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=work, args=(inside, *arguments), daemon=True)
        self.process.start()
        inside.close()

    def ask(self, what=True):
        self.pipe.send(what)
        return self.pipe.recv()

    def end(self):
        try:
            self.pipe.send(None)
        except OSError:
            pass  # it broke, as somebody was told
        self.process.join(60)


def beat(pipe, url, key, pid):
    """Heartbeats; when asked, their waits in seconds and the most memory that the server had since."""
    http = httpx.Client(base_url=url + "/api/v1/", timeout=60, headers={"X-API-Key": key})
    session = persist(lambda: http.post("create_session", json={"tags": []})).json()["session_id"]

    def once():
        try:
            return http.post("session_heartbeat", json={"session_id": session}).status_code
        except httpx.TransportError:  # its connection made way: a new one
            return http.post("session_heartbeat", json={"session_id": session}).status_code

    waits, most = [], 0
    while True:
        begin = time.monotonic()
        code = once()
        assert code == 200, code
        waits.append(time.monotonic() - begin)
        most = max(most, memory(pid))
        if pipe.poll():
            if not pipe.recv():
                return
            pipe.send((sorted(waits), most))
            waits, most = [], 0
        time.sleep(0.01)


class Work:
    """A pass and a sample of a model of its own, the same each time."""

    def __init__(self, url, key):
        self.wire, self.number = Wire(url, key), 0
        self.session = self.wire.session()
        self.model = self.wire.model(self.session, rank=8, seed=11)
        self.model.run([ce(A)])
        self.model.step(learning_rate=1e-2)
        self.sampler = self.wire.result(self.model.op("save_weights_for_sampler", sampling_session_seq_id=0))["sampling_session_id"]

    def result(self, sent):
        assert sent.status_code == 200, (sent.status_code, sent.text)
        done = persist(lambda: self.wire.post("retrieve_future", {"request_id": sent.json()["request_id"]}))
        assert done.status_code == 200 and done.headers["content-type"] == "application/x-protobuf", (done.status_code, done.text)
        return done.content

    def once(self):
        self.number += 1
        assert persist(lambda: self.wire.post("session_heartbeat", {"session_id": self.session})).status_code == 200
        seq = self.model.next()
        passed = persist(lambda: self.model.send([ce(A), ce(A[::-1])], seq=seq))
        sampled = persist(lambda: self.wire.sample(self.sampler, self.number, A, max_tokens=8, params={"seed": 3, "stop": []}))
        out = pb.ForwardBackwardOutput.FromString(self.result(passed))
        return arrays(out), sorted(out.metrics.items()), pb.SampleResponse.FromString(self.result(sampled)).SerializeToString(deterministic=True)


def repeat(pipe, url, key):
    """Work from one question to the next; answers are how often it was done, and what was other than at first."""
    work = Work(url, key)
    wanted = work.once()
    pipe.send(None)
    while pipe.recv():
        pipe.send(None)
        count, other = 0, []
        while not count or not pipe.poll(0.5):  # the rest of the machine is for who attacks
            got = work.once()
            count += 1
            if got != wanted:
                other.append((wanted, got))
        if not pipe.recv():
            return
        pipe.send((count, other[:1]))


class Bystander:
    """Of a server whose process is `pid` and whose --memory is `limit`; `works`: not heartbeats alone."""

    def __init__(self, url, key, pid, limit, works=True):
        self.limit, self.partners = limit, [Partner(beat, url, key, pid)]
        if works:
            self.partners.append(Partner(repeat, url, key))
            self.partners[1].pipe.recv()  # its first result is there
        self.before = 0

    def begin(self):
        self.before = self.partners[0].ask()[1]
        for worker in self.partners[1:]:
            worker.ask()

    def end(self):
        for partner in self.partners:
            partner.end()

    def report(self, what, slowest=0.0):
        """What it saw since begin(): fails where other bits came, or none; what lies outside the bars of a quiet machine."""
        waits, most = self.partners[0].ask()
        grown, p99 = max(0, most - self.before), waits[int(0.99 * len(waits))]
        seen = [worker.ask() for worker in self.partners[1:]]
        print(f"  {what}: +{grown // MIB} MiB, heartbeats p99 {1e3 * p99:.0f} ms, at most {1e3 * waits[-1]:.0f} ms; "
              f"slowest answer {slowest:.2f} s{''.join(f'; the same bits {count} times' for count, other in seen if not other)}", flush=True)
        assert not any(other for _, other in seen), (what, seen)
        assert waits[-1] < HANGS, what
        assert grown < self.limit // 2, what
        bars = {f"p99 of heartbeats {1e3 * p99:.0f} ms": p99 < 0.1, f"a heartbeat after {waits[-1]:.1f} s": waits[-1] < 2,
                f"an answer after {slowest:.1f} s": slowest < 2, f"{most // MIB} MiB": most < 1.05 * self.limit}
        return [f"{what}: {text}" for text, holds in bars.items() if not holds]
