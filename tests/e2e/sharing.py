# SPDX-License-Identifier: Apache-2.0
"""How long a short sample of one tenant takes beside another tenant's load, as JSON lines.

usage: sharing.py STRATA MODEL_DIR [OPTION..]  options are those of serve
"""
import json
import pathlib
import random
import sys
import tempfile
import time

from lifetimes import Server
from wire import Wire, ce

HOG, OTHER = "tml-" + "a" * 32, "tml-" + "b" * 32


def tokens_of(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(1, 4000) for _ in range(count)]


def serve(strata, model, folder, *options):
    path = pathlib.Path(folder, "keys")
    path.write_text(f"{HOG} hog\n{OTHER} other\n")
    path.chmod(0o600)
    return Server(strata, model, str(pathlib.Path(folder, "data")), "--keys", str(path), *options, keys=True)


class Tenant:
    def __init__(self, url, key):
        self.wire = Wire(url, key)
        self.wire.http.timeout = 600
        self.session = self.wire.session()
        self.sampler = self.wire.sampler(self.session, 0, base_model="tiny")
        self.next = 0

    def send(self, prompt, max_tokens, count=1, **more):
        self.next += 1
        return self.wire.sample(self.sampler, self.next, prompt, max_tokens=max_tokens, count=count,
                                params={"seed": self.next, "stop": []}, **more)

    def sample(self, *args, **more):
        return self.wire.result(self.send(*args, **more))


def times(strata, model, options):
    """Seconds of samples of 1 and of 4 tokens beside each load of another tenant."""
    def measure(name, prepare):
        with tempfile.TemporaryDirectory() as folder:
            server = serve(strata, model, folder, *options)
            hog, other = Tenant(server.url, HOG), Tenant(server.url, OTHER)
            other.sample(tokens_of(1, 12), 1)
            prepare(hog)
            time.sleep(8)
            seconds = {1: [], 4: []}
            for i in range(8):
                for count, list_of in seconds.items():
                    begin = time.monotonic()
                    other.sample(tokens_of(2 + i, 12), count)
                    list_of.append(round(time.monotonic() - begin, 2))
                time.sleep(random.Random(i).uniform(0, 1))
            print(json.dumps({"load": name, "tokens_1": seconds[1], "tokens_4": seconds[4]}), flush=True)
            server.process.kill()
            server.process.wait()

    def train(length):
        def prepare(hog):
            tiny = hog.wire.model(hog.session, 1, rank=8)
            for i in range(8):
                tiny.send([ce(tokens_of(i, length + 1))])
        return prepare

    def sample(hog):
        for i in range(60):
            hog.send(tokens_of(i, 12), 1600, count=100)
    measure("none", lambda hog: None)
    measure("60 requests of 100 samples of 1,600 tokens", sample)
    measure("passes of 2,048 tokens", train(2048))
    measure("passes of 16,384 tokens", train(16384))


def main():
    strata, model, *options = sys.argv[1:]
    times(strata, model, options)


if __name__ == "__main__":
    main()
