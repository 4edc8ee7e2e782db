"""What ends when: results, gaps, sessions, a process. Starts its own server with short times.

usage: lifetimes.py STRATA MODEL_DIR
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

from wire import KEY, Model, Wire, ce, wait_until

A = [5, 9, 17, 33, 65, 12, 40, 7]


class Server:
    def __init__(self, strata, model, data, *options):
        self.process = subprocess.Popen(
            [strata, "serve", "--model", f"tiny={model}", "--data", data, "--listen", "127.0.0.1:0",
             "--metrics-listen", "127.0.0.1:0", "--no-keys", *options],
            stdout=subprocess.PIPE, text=True, bufsize=1)
        for line in self.process.stdout:
            if "http://" in line and "metrics" not in line:
                self.url = "http://" + line.split("http://")[1].split()[0].rstrip("/.,;")
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


def main():
    strata, model = sys.argv[1:3]
    passed = short_times(strata, model)
    for how in (signal.SIGKILL, signal.SIGTERM):
        passed += restart(strata, model, how)
    print(f"lifetimes: items {sorted(set(passed))} passed")


if __name__ == "__main__":
    main()
