#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a token of a streamed answer costs the server's I/O thread, from the engine's event to the socket, JSON included:
CPU time of that thread, less what it takes in as long a time while nobody asks.

usage: tools/run/event_cost.py PROGRAM MODEL      MODEL: a small one (models/tiny-qwen3), so that tokens come fast
Needs the Python of tools/run/sdk_python.sh.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import httpx

TOKENS, STREAMS, ATTEMPTS = 400, (1, 8, 32), 3


def start(program, model, work):
    log = pathlib.Path(work) / "log"
    with open(log, "w") as out:
        server = subprocess.Popen([program, "serve", "--model", f"tiny={model}", "--listen", "127.0.0.1:0", "--data", f"{work}/data",
                                   "--no-keys", "--metrics-listen", "127.0.0.1:0", "--memory", "2GiB"], stdout=out, stderr=subprocess.STDOUT)
    for _ in range(300):
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            return server, found[0]
        time.sleep(0.1)
    raise SystemExit(f"event_cost: the server does not start: {log.read_text()[-2000:]}")


def busy_ns(thread):
    return int((thread / "schedstat").read_text().split()[0])


def io_thread(pid, url):
    """The thread that worked most while answers came that nobody else makes."""
    threads = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
    before = {thread: busy_ns(thread) for thread in threads}
    with httpx.Client() as client:
        for _ in range(2000):
            client.get(url + "/api/v1/healthz")
    return max(threads, key=lambda thread: busy_ns(thread) - before[thread])


def stream(url, ends, tokens):
    body = {"model": "tiny", "prompt": [5, 6, 7, 8], "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True},
            "logit_bias": {str(end): -100 for end in ends}}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=100) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage")
                if usage:
                    tokens.append(usage["completion_tokens"])


def main():
    program, model = sys.argv[1:3]
    ends = json.loads((pathlib.Path(model) / "generation_config.json").read_text())["eos_token_id"]
    with tempfile.TemporaryDirectory() as work:
        server, url = start(program, model, work)
        try:
            thread = io_thread(server.pid, url)
            for num in STREAMS * ATTEMPTS:
                tokens, begin, before = [], time.time(), busy_ns(thread)
                clients = [threading.Thread(target=stream, args=(url, ends, tokens)) for _ in range(num)]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                spent, took = busy_ns(thread) - before, time.time() - begin
                before = busy_ns(thread)
                time.sleep(took)
                anyway = busy_ns(thread) - before
                print(f"{num} streams, {sum(tokens)} tokens in {took:.2f} s: {(spent - anyway) / sum(tokens) / 1000:.1f} us of the I/O thread a token")
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
