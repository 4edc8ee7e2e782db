# SPDX-License-Identifier: Apache-2.0
"""What ends when: results, gaps, sessions, a process; and what a crowd meets. Starts its own servers, with short times.

usage: lifetimes.py STRATA MODEL_DIR
"""
import atexit
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

from wire import KEY, Model, Wire, ce, record, wait_until

A = [5, 9, 17, 33, 65, 12, 40, 7]


class Server:
    def __init__(self, strata, model, data, *options, keys=False, **process):
        self.process = subprocess.Popen(
            [*([strata] if isinstance(strata, str) else strata), "serve", "--model", f"tiny={model}", "--data", data,
             *([] if "--listen" in options else ["--listen", "127.0.0.1:0"]), "--metrics-listen", "127.0.0.1:0", *([] if keys else ["--no-keys"]), *options],
            stdout=subprocess.PIPE, text=True, bufsize=1, **process)
        atexit.register(self.process.kill)  # a failed test leaves no server behind
        for line in self.process.stdout:
            if "listening on unix:" in line:
                self.url = line.split("listening on ")[1].strip()
            elif "listening on http" in line:
                self.url = line.split("listening on ")[1].split()[0].rstrip("/.,;")
            elif "metrics on http://" in line:
                self.metrics_url = line.split("metrics on ")[1].strip()
                return
        raise AssertionError("the server did not start")

    def stop(self, with_signal=signal.SIGTERM):
        self.process.send_signal(with_signal)
        return self.process.wait(60)


def short_times(strata, model):
    with tempfile.TemporaryDirectory() as data:
        server = Server(strata, model, data, "--result-ttl", "2", "--gap-timeout", "1", "--session-timeout", "4")
        wire = Wire(server.url, KEY)
        session = wire.session()
        tiny = wire.model(session)
        # 33: an expired result
        done = tiny.send([ce(A)]).json()
        wire.result(done)
        assert wait_until(lambda: wire.poll(done["request_id"]).status_code == 410), "33"
        # 51: a permanent gap
        held = wire.result(tiny.send([ce(A)], seq=5))
        assert held["category"] == "server" and held["error"], held
        late = tiny.send([ce(A)], seq=3)
        assert late.status_code == 400, late.text
        # 105: a client that fell silent
        path = Model.save(wire.model(session, 7), "kept")["path"]
        assert wait_until(lambda: wire.post("session_heartbeat", {"session_id": session}).status_code == 200)
        time.sleep(6)
        assert wire.post("session_heartbeat", {"session_id": session}).status_code == 410
        assert wire.post("get_info", {"model_id": tiny.id}).status_code == 404
        assert wire.post("weights_info", {"tinker_path": path}).status_code == 200
        assert server.stop() == 0
    return [33, 51, 105]


def restart(strata, model, how):
    with tempfile.TemporaryDirectory() as data:
        server = Server(strata, model, data)
        wire = Wire(server.url, KEY)
        session = wire.session()
        tiny = wire.model(session)
        tiny.run([ce(A)])
        tiny.step()
        path = tiny.save("kept")["path"]
        wanted = tiny.logprobs([ce(A)])
        base = wire.sampler(session, 0, base_model="tiny")
        held = tiny.send([ce(A)], seq=99).json()
        sample = wire.sample(base, 0, A, max_tokens=4).json()
        server.stop(how)
        server = Server(strata, model, data)
        wire = Wire(server.url, KEY)
        lost = wire.poll(held["request_id"])
        assert lost.status_code == 200 and lost.json()["category"] == "server", lost.text
        assert wire.poll(sample["request_id"]).status_code == 410
        reply = wire.post("get_info", {"model_id": tiny.id})
        assert reply.status_code == 404 and path in reply.text, reply.text
        assert wire.post("session_heartbeat", {"session_id": session}).status_code == 200
        wire.sampled(base, 1, A)
        again = wire.result(wire.post("load_weights", {"session_id": session, "model_seq_id": 1, "path": path,
                                                       "optimizer": True}))
        assert Model(wire, again["model_id"]).logprobs([ce(A)]) == wanted
        assert os.listdir(os.path.join(data, "tmp")) == []
        assert server.stop() == 0
    return [35]


def overload(strata, model):
    """85: a full sample queue answers 429, and every sample gets through by being sent again."""
    with tempfile.TemporaryDirectory() as data:
        server = Server(strata, model, data, "--max-queued-samples", "4")
        wire = Wire(server.url, KEY)
        session = wire.session()
        sampler = wire.sampler(session, 0, base_model="tiny")
        waiting, accepted, refused = list(range(200)), {}, 0
        while waiting:
            later = []
            for number in waiting:
                reply = wire.sample(sampler, number, A, max_tokens=48, params={"seed": number, "stop": []})
                if reply.status_code == 429:
                    assert float(reply.headers["retry-after"]) > 0 and reply.json()["detail"], reply.text
                    refused += 1
                    later.append(number)
                else:
                    assert reply.status_code == 200, reply.text
                    accepted[number] = reply.json()
            waiting = later
        assert refused > 0, "the queue was never full"
        again = wire.sample(sampler, 7, A, max_tokens=48, params={"seed": 7, "stop": []}).json()
        assert again == accepted[7], (again, accepted[7])
        ids = [sequence for reply in accepted.values() for sequence in reply["sample_sequence_ids"]]
        assert len(ids) == len(set(ids)) == 200 and all(ids)
        for reply in accepted.values():
            assert isinstance(wire.result(reply), bytes)
        assert server.stop() == 0
    return [85]


def crowd(strata, model, count=2000):
    """8, 14: polls parked by the thousand and a long pass hold nobody up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 100)), hard))
    with tempfile.TemporaryDirectory() as data:
        server = Server(strata, model, data)
        wire = Wire(server.url, KEY)
        session = wire.session()
        tiny, busy = wire.model(session), wire.model(session, 1)
        held = [tiny.send([ce(A)], seq=2 + i).json()["request_id"] for i in range(count // 4)]
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        peers = []
        for i in range(count):  # four polls of one future may wait
            body = json.dumps({"request_id": held[i // 4]}).encode()
            head = (f"POST /api/v1/retrieve_future HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEY}\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode()
            peer = socket.create_connection(address, timeout=60)
            peer.sendall(head + body)
            peers.append(peer)
        long = busy.send([ce([1 + i % 4000 for i in range(4097)])] * 2)
        worst = 0.0
        for _ in range(30):
            start = time.monotonic()
            assert wire.post("session_heartbeat", {"session_id": session}).status_code == 200
            worst = max(worst, time.monotonic() - start)
            time.sleep(0.02)
        assert worst < 10, worst
        wire.result(long)
        tiny.send([ce(A)], seq=1)
        for peer in peers:
            assert peer.recv(15).startswith(b"HTTP/1.1 200"), "a parked poll was not answered"
            peer.close()
        assert server.stop() == 0
    print(f"lifetimes: {count} parked polls; slowest heartbeat beside them and a long pass {1000 * worst:.0f} ms")
    return [8, 14]


def main():
    strata, model = sys.argv[1:3]
    passed = short_times(strata, model) + overload(strata, model) + crowd(strata, model)
    for how in (signal.SIGKILL, signal.SIGTERM):
        passed += restart(strata, model, how)
    record(sorted(set(passed)), "lifetimes.py")
    print(f"lifetimes: items {sorted(set(passed))} passed")


if __name__ == "__main__":
    main()
