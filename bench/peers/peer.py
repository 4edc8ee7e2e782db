# SPDX-License-Identifier: Apache-2.0
"""Both ends of a peer: the process of its own environment that holds the model, and what the driver knows of it.

The driver writes one line of JSON a request, {"work": NAME}, to the peer's standard input; the peer answers with one
line, {"tokens_per_s": X} or {"error": TEXT}. The first line that a peer writes, once its model is there, names its
versions. What its libraries print goes to its log.
"""
import json
import os
import select
import subprocess
import sys

from machine import session_seconds
from works import BY_NAME


def serve(open_peer):
    """The peer's main: `open_peer(model, threads, quick)` has `versions` (text) and `run(work)` (tokens a second)."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    model, threads, quick = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["quick"]
    peer = open_peer(model, threads, quick)
    answer(versions=peer.versions)
    for line in sys.stdin:
        try:
            answer(tokens_per_s=peer.run(BY_NAME[json.loads(line)["work"]]))
        except Exception as error:  # the work is left out with this reason; others go on
            answer(error=f"{type(error).__name__}: {error}".split("\n")[0])


class PeerError(Exception):
    pass


class Peer:
    """A peer's process; a context manager, which ends it."""

    def __init__(self, name, script, python, model, threads, log, quick, patience, environment):
        self.name, self.log, self.patience = name, log, patience
        command = [python, script, model, str(threads)] + (["quick"] if quick else [])
        with open(log, "w") as errors:
            # A session of its own: what its children take is its own too.
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                            start_new_session=True, env={**os.environ, **environment})

    def __enter__(self):
        try:
            self.versions = self._read()["versions"]
        except PeerError:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        self._end()

    def _end(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self):
        if not select.select([self.process.stdout], [], [], self.patience)[0]:
            raise PeerError(f"no answer within {self.patience} s; see {self.log}")
        line = self.process.stdout.readline()
        if not line:
            said = [text for text in open(self.log, errors="replace").read().splitlines() if text.strip()]
            raise PeerError(f"ended: {said[-1].strip() if said else 'without a word'}; see {self.log}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def seconds(self):
        return session_seconds(self.process.pid)

    def run(self, work):
        """Tokens a second."""
        self.process.stdin.write((json.dumps({"work": work.name}) + "\n").encode())
        self.process.stdin.flush()
        return self._read()["tokens_per_s"]
