#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token, and between tokens, of streams from servers of OpenAI's API, in turn, in one run.

usage: python tools/check/compare_servers.py NAME=URL[,MODEL[,KEY]] ... [--prompt 512] [--pairs 5] ...

URL: http://HOST:PORT, of a server that is already there and serves one model (all servers the same one, in the same dtype, on the
same threads). MODEL: its name there; default: the first of /v1/models.
first token    one stream at a time: from sending the request to its first chunk with text; a new random prompt of
               --prompt tokens each time, so that no cache of prefixes helps
between tokens --streams at once, prompts of 128 tokens: the median time between two chunks of a stream while all of them run
One round that is not timed comes first. Servers take turns, one after the other within each pair.
"""
import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
import urllib.parse


class Server:
    def __init__(self, text):
        name, _, rest = text.partition("=")
        url, _, rest = rest.partition(",")
        self.name = name
        self.model, _, self.key = rest.partition(",")
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        if not name or not self.host or not self.port:
            sys.exit(f"{text}: wanted NAME=http://HOST:PORT[,MODEL[,KEY]]")
        if not self.model:
            self.model = json.loads(self.request("GET", "/v1/models").read())["data"][0]["id"]

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"{self.name}: {answer.status} {answer.read()[:400]!r}")
        return answer

    def stream(self, prompt, tokens):
        """Seconds after sending at which each chunk with text came."""
        start = time.perf_counter()
        answer = self.request("POST", "/v1/completions", {
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True})
        times = []
        for line in answer:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            if any(choice.get("text") for choice in json.loads(line[6:]).get("choices", [])):
                times.append(time.perf_counter() - start)
        if not times:
            sys.exit(f"{self.name}: a stream without text")
        return times


def random_prompt(source, tokens, vocabulary):
    return [source.randrange(300, vocabulary) for _ in range(tokens)]


def between(server, source, args):
    arrivals = [None] * args.streams
    prompts = [random_prompt(source, 128, args.vocabulary) for _ in range(args.streams)]

    def run(i):
        begun = time.perf_counter()
        arrivals[i] = [begun + t for t in server.stream(prompts[i], args.tokens)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(args.streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, last = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    together = [[t for t in times if first <= t <= last] for times in arrivals]
    all_gaps = [b - a for times in together for a, b in zip(times, times[1:])]
    if not all_gaps:
        sys.exit(f"{server.name}: the streams never ran together; give more --tokens")
    return statistics.median(all_gaps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL[,MODEL[,KEY]]")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=33)
    parser.add_argument("--vocabulary", type=int, default=150000, help="prompts have ids from 300 to this")
    parser.add_argument("--seed", type=int, help="of the prompts; drawn when absent: a known one's may be cached")
    args = parser.parse_args()
    servers = [Server(text) for text in args.servers]
    source = random.Random(args.seed)
    first = {server.name: [] for server in servers}
    gaps = {server.name: [] for server in servers}
    for pair in range(-1, args.pairs):
        for server in servers:
            seconds = server.stream(random_prompt(source, args.prompt, args.vocabulary), 4)[0]
            gap = between(server, source, args)
            print(f"{'warm' if pair < 0 else pair}  {server.name:12} first token {seconds:7.3f} s, between tokens of "
                  f"{args.streams} streams {1e3 * gap:7.1f} ms", flush=True)
            if pair >= 0:
                first[server.name].append(seconds)
                gaps[server.name].append(gap)
    for server in servers:
        print(f"median {server.name:12} first token {statistics.median(first[server.name]):7.3f} s, between tokens "
              f"{1e3 * statistics.median(gaps[server.name]):7.1f} ms")


if __name__ == "__main__":
    main()
