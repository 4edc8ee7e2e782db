#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that a request crosses: one forward_backward and one asample, each from its first byte to the answer of its poll,
traced by valgrind's callgrind, which knows each line that ran, inlined ones too.

The rule: a file is a header with its source. It counts where it is below src/server, src/scheduler, src/engine or src/apps
and a line of it ran for the request that does not run while nobody asks for anything, nor when what requests left is written
down some seconds later. The request comes on a connection that is open, and is polled once it is done. What the engine
computes with (model, train, ops, ...) and plain values (api) are printed and not counted.

usage: tools/run/walk.py PROGRAM MODEL [--lines]     PROGRAM: built with -g1 or more; --lines: which lines of each file
Needs valgrind, and the Python of tools/run/sdk_python.sh.
"""

import collections
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import wire  # noqa: E402

COUNTED = ("server", "scheduler", "engine", "apps")
IDLE_SECONDS, STANDSTILL_SECONDS = 8, 3  # what is swept every five seconds is a part of what runs anyway
QUIET_SECONDS, MOST_SECONDS = 3, 600     # so long without work is done; under valgrind on a busy machine nothing is quick
ROUNDS = 4                               # of idling: in one of them at least the sweep finds what a request left
SHIFT_SECONDS = 1.2                      # of a round against the one before: in step with the sweep none would find it
SETTLE_SECONDS = 0.5                     # what follows an answer on the server's side
TICK = os.sysconf("SC_CLK_TCK")


def lines_of(dump):
    """{stem below src/: {(suffix, line)}} of what ran."""
    files, ran, current, line, is_call = {}, collections.defaultdict(set), None, 0, False
    for text in dump.read_text(errors="replace").splitlines():
        name = re.match(r"(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?", text)
        if name:
            if name[3]:
                files[name[2]] = re.search(r"/src/([a-z]+/(?!.*\.pb\.).*)\.(h|cc|inc)$", name[3])
            if name[1] in ("fl", "fi", "fe"):
                current = files.get(name[2])
        elif text.startswith("calls="):
            is_call = True
        elif re.match(r"[+*\d-]", text):
            at, *cost = text.split()
            line = line if at == "*" else line + int(at) if at[0] in "+-" else int(at)
            if not is_call and current and cost:
                ran[current[1]].add((current[2], line))
            is_call = False
    return ran


class Trace:
    def __init__(self, program, model, work):
        self.work, self.num, self.at_rest = pathlib.Path(work), 0, 0.0
        tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={work}/dump.%p"]
        command = [program, "serve", "--model", f"tiny={model}", "--listen", "127.0.0.1:0", "--data", f"{work}/data", "--no-keys", "--metrics-listen", "127.0.0.1:0",
                   "--memory", "2GiB", "--threads", "1"]
        self.log = self.work / "log"
        with open(self.log, "w") as log:
            self.server = subprocess.Popen(tool + command, stdout=log, stderr=subprocess.STDOUT,
                                           env={**os.environ, "STRATA_CPU_PATH": "avx2"})  # valgrind knows no AVX-512

    def url(self):
        end = time.monotonic() + MOST_SECONDS
        while time.monotonic() < end:
            found = re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())
            if found:
                return found[0]
            time.sleep(0.2)
        raise SystemExit(f"walk: the server does not start: {self.log.read_text()[-2000:]}")

    def control(self, *options):
        subprocess.run(["callgrind_control", *options, str(self.server.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ran(self):
        """What ran since the last call."""
        before = set(self.work.glob("dump.*"))
        self.num += 1
        self.control("-d", f"part{self.num}")
        end = time.monotonic() + MOST_SECONDS
        while time.monotonic() < end:
            new = [path for path in set(self.work.glob("dump.*")) - before if "totals:" in path.read_text(errors="replace")]
            if new:
                return lines_of(new[0])
            time.sleep(0.1)
        raise SystemExit("walk: callgrind wrote no dump")

    def worked(self, seconds):
        """How much of one core's time the process takes, of so many seconds."""
        def used():
            fields = pathlib.Path(f"/proc/{self.server.pid}/stat").read_text().rsplit(") ", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / TICK
        before = used()
        time.sleep(seconds)
        return (used() - before) / seconds

    def wait_until_quiet(self):
        """Until it works no more than it does for nobody, without asking it: a poll that is held is another way."""
        end = time.monotonic() + MOST_SECONDS
        time.sleep(1)
        while self.worked(QUIET_SECONDS) > 1.5 * self.at_rest + 0.02:
            if time.monotonic() > end:
                raise SystemExit("walk: the request is never done")

    def idle(self):
        """What runs while nobody asks for anything; also that the process stood still, as it does under valgrind."""
        self.at_rest = self.worked(IDLE_SECONDS)
        os.kill(self.server.pid, signal.SIGSTOP)
        time.sleep(STANDSTILL_SECONDS)
        os.kill(self.server.pid, signal.SIGCONT)
        time.sleep(1)
        return self.ran()


def walks(program, model):
    """{name: what ran for it}, and what runs anyway."""
    with tempfile.TemporaryDirectory() as work:
        trace = Trace(program, model, work)
        try:
            client = wire.Wire(trace.url(), timeout=MOST_SECONDS, limits=httpx.Limits(keepalive_expiry=None))
            session = client.session()
            adapter, sampler = client.model(session), client.sampler(session, 1, base_model="tiny")
            tokens, number = list(range(5, 37)), iter(range(1, 100))

            def sample():
                return client.sample(sampler, next(number), tokens, max_tokens=4)

            out, anyway = {}, collections.defaultdict(set)
            for name, send in (("forward_backward", lambda: adapter.send([wire.ce(tokens)])), ("asample", sample)):
                client.result(send())  # what is made once
                trace.control("-i", "on")
                for part in range(ROUNDS):
                    time.sleep(part * SHIFT_SECONDS)
                    client.result(send())
                    time.sleep(SETTLE_SECONDS)
                    trace.ran()  # not what this one ran, but what is written down of it next
                    for stem, lines in trace.idle().items():
                        anyway[stem] |= lines
                submission = send()
                trace.wait_until_quiet()
                client.result(submission)
                time.sleep(SETTLE_SECONDS)
                out[name] = trace.ran()
                for stem, lines in trace.idle().items():
                    anyway[stem] |= lines
                trace.control("-i", "off")
            return out, anyway
        finally:
            trace.server.terminate()
            try:
                trace.server.wait(MOST_SECONDS)
            except subprocess.TimeoutExpired:
                trace.server.kill()


def main():
    program, model = sys.argv[1], sys.argv[2]
    ran, anyway = walks(program, model)
    for name, stems in ran.items():
        own = {stem for stem, lines in stems.items() if lines - anyway[stem]}
        by_folder = collections.defaultdict(list)
        for stem in sorted(own):
            by_folder[stem.split("/")[0]].append(stem)
        print(f"{name}: {sum(len(by_folder[folder]) for folder in COUNTED)} files")
        if "--lines" in sys.argv:
            for stem in sorted(own):
                if stem.split("/")[0] in COUNTED:
                    print("   ", stem, " ".join(f"{s}:{n}" for s, n in sorted(stems[stem] - anyway[stem])))
        for folder in (*COUNTED, *sorted(set(by_folder) - set(COUNTED))):
            mark = "" if folder in COUNTED else " (not counted)"
            names = ", ".join(stem[len(folder) + 1:] for stem in by_folder[folder])
            print(f"  {folder} {len(by_folder[folder])}{mark}: {names}")


if __name__ == "__main__":
    main()
