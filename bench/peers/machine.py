# SPDX-License-Identifier: Apache-2.0
"""What else the machine does: CPU time that other processes and the host take, and a probe of its speed. Linux only."""
import hashlib
import os
import pathlib
import threading
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROBE_BYTES = 256 << 20  # a thread; a few tenths of a second
BLOCK = bytes(1 << 20)


def busy_seconds(stat):
    """Of all cores, from the text of /proc/stat: user, nice, system, irq, softirq and steal. Guests are in user."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def session_seconds(session):
    """CPU time of a session's living processes, and of those of their children that ended."""
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / TICKS_PER_S


def others_share(busy, ours, seconds, cores):
    """The share of the machine that was taken by what is not ours. Ticks are coarse, so it could come out below 0."""
    return max(0.0, (busy - ours) / (seconds * cores))


class Watch:
    """What others take while a `with` block runs; `ours()` is the CPU time so far of what is measured."""

    def __init__(self, ours):
        self.ours = ours

    def _read(self):
        own = sum(os.times()[:2])
        return busy_seconds(pathlib.Path("/proc/stat").read_text()), self.ours() + own, time.perf_counter()

    def __enter__(self):
        self.begin = self._read()
        return self

    def __exit__(self, *_):
        busy, ours, seconds = (end - begin for begin, end in zip(self.begin, self._read()))
        self.others = others_share(busy, ours, seconds, os.cpu_count())


def probe(threads):
    """GB/s that so many threads hash together: it moves with the clock and with what the host takes."""
    def run():
        digest = hashlib.sha256()
        for _ in range(PROBE_BYTES // len(BLOCK)):
            digest.update(BLOCK)  # without the interpreter's lock

    all_threads = [threading.Thread(target=run) for _ in range(threads)]
    start = time.perf_counter()
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    return threads * PROBE_BYTES / (time.perf_counter() - start) / 1e9


def describe():
    """Cores, processor, and whether it has tiles."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    fields = dict((key.strip(), value.strip()) for key, _, value in
                  (line.partition(":") for line in text.split("\n\n")[0].splitlines()))
    model = fields.get("model name", "unknown processor").replace("(R)", "").replace("(TM)", "")
    tiles = "with AMX" if "amx_bf16" in fields.get("flags", "").split() else "without AMX"
    return f"{os.cpu_count()} cores {model} {tiles} (family {fields.get('cpu family')}, model {fields.get('model')})"
