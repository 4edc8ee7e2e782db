#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks as on two hosts: network namespaces with names of their own, between them TCP alone and no shared memory.
Runs give the files of one process, also over a link that is slow, loses packets or is silent for a while; a link that
is cut ends the run with a message, and --resume goes on to the same bits.

usage: two_hosts.py STRATA MODEL_DIR DATA
As root, with mpirun and ip; says that it is skipped where no namespace can be made.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from link_relay import SILENCE_S

HERE = pathlib.Path(__file__).resolve().parent
HOSTS = {"strata-one": "10.77.0.1", "strata-two": "10.77.0.2"}
RELAY = "strata-relay"
NETWORK = "10.77.0.0/24"
FILES = ("adapter_model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json")
SILENCE_LIMIT_S = 10  # of a rank, docs/cluster.md
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
GRACE_S = 10  # of a machine that has others' work to do


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def add_host(name):
    ip("netns", "add", name)
    ip("-n", name, "link", "set", "lo", "up")
    folder = pathlib.Path("/etc/netns") / name  # `ip netns exec` puts its files over those in /etc
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{address} {host}\n" for host, address in HOSTS.items()]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))


def remove_hosts():
    for name in (*HOSTS, RELAY):
        for pid in ip("netns", "pids", name, check=False).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ip("netns", "del", name, check=False)
        shutil.rmtree(pathlib.Path("/etc/netns") / name, ignore_errors=True)


def connect(host, interface, other_host, other_interface):
    ip("link", "add", interface, "netns", host, "type", "veth", "peer", "name", other_interface, "netns", other_host)
    for name, end in ((host, interface), (other_host, other_interface)):
        if name in HOSTS:
            ip("-n", name, "addr", "add", f"{HOSTS[name]}/24", "dev", end)
        ip("-n", name, "link", "set", end, "up")


@contextlib.contextmanager
def two_hosts(delay=None, loss=0.0, seed=7):
    """The two hosts, connected directly, or by a relay: yields the relay's process, or None."""
    remove_hosts()
    relay = None
    try:
        one, two = HOSTS
        for name in HOSTS:
            add_host(name)
        if delay is None:
            connect(one, "to-two", two, "to-one")
        else:
            ip("netns", "add", RELAY)
            connect(one, "to-two", RELAY, "one")
            connect(two, "to-one", RELAY, "two")
            for host, interface in ((one, "to-two"), (two, "to-one")):
                ip("netns", "exec", host, sys.executable, str(HERE / "link_relay.py"), interface)
            relay = subprocess.Popen(
                ["ip", "netns", "exec", RELAY, sys.executable, HERE / "link_relay.py", "one", "two", str(delay),
                 str(loss), str(seed)], stdout=subprocess.PIPE, text=True)
            if relay.stdout.readline().strip() != "ready":
                raise SystemExit("two_hosts: the relay did not start")
        yield relay
    finally:
        if relay is not None:
            relay.kill()
            relay.wait()
        remove_hosts()


class Runs:
    """strata train with the same options: as one process, and as ranks on the two hosts."""

    def __init__(self, strata, model, data, folder):
        self.folder = folder
        self.train = [strata, "train", model, "--data", data, "--batch-size", "2", "--lr-schedule", "constant",
                      "--save-every", "2"]
        (folder / "hosts").write_text("".join(f"{host} slots=2\n" for host in HOSTS))
        agent = folder / "agent.sh"  # mpirun's way to another host: agent.sh HOST COMMAND...
        agent.write_text('#!/bin/sh\nhost=$1; shift\n'
                         'exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"\n')
        agent.chmod(0o755)

    def one(self, steps):
        out = self.folder / f"one-{steps}"
        if not out.exists():
            subprocess.run([*self.train, "--steps", str(steps), "--out", out], check=True, **QUIET)
        return out

    def start(self, out, ranks, steps, *options):
        number = 1
        for part in ranks.split(","):
            number *= int(part.split("=")[1])
        first = next(iter(HOSTS))
        return subprocess.Popen(
            ["ip", "netns", "exec", first, "unshare", "--uts", "sh", "-c", f'hostname {first}; exec "$@"', "sh",
             "mpirun", "--allow-run-as-root", "--hostfile", self.folder / "hosts", "-n", str(number), "--map-by", "node",
             "--bind-to", "none", "--mca", "plm_rsh_agent", self.folder / "agent.sh", "--mca", "btl", "tcp,self",
             "--mca", "btl_tcp_if_include", NETWORK, "--mca", "oob_tcp_if_include", NETWORK,
             *self.train, "--steps", str(steps), "--out", out, "--ranks", ranks, *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ranks(self, name, ranks, steps, *options):
        process = self.start(self.folder / name, ranks, steps, *options)
        text, _ = process.communicate(timeout=600)
        if process.returncode != 0:
            raise SystemExit(f"{name}: exit code {process.returncode}\n{text}")
        return text

    def expect_same(self, name, steps):
        for file in FILES:
            if (self.one(steps) / file).read_bytes() != (self.folder / name / file).read_bytes():
                raise SystemExit(f"{name}: {file} is not that of one process")


def start_until_saved(runs, out, steps):
    """A run over the hosts that has saved, and goes on."""
    process = runs.start(out, "data=2", steps)
    until = time.monotonic() + 120
    while not (out / "trainer/state.json").exists():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise SystemExit(f"{out.name}: nothing was saved\n{process.stdout.read()}")
        time.sleep(0.02)
    return process


def over_tcp(runs):
    with two_hosts():
        for ranks in ("data=2", "pipeline=2", "pipeline=2,data=2"):
            name = ranks.replace(",", "-")
            runs.ranks(name, ranks, 4, *(["--microbatches", "2"] if "pipeline" in ranks else []))
            runs.expect_same(name, 4)


def over_a_bad_link(runs):
    for ranks in ("data=2", "pipeline=2"):
        with two_hosts(delay=0.2, loss=0.01):
            runs.ranks(f"bad-{ranks}", ranks, 2)
            runs.expect_same(f"bad-{ranks}", 2)


def over_a_link_that_is_silent_once(runs):
    out, steps = runs.folder / "silent", 12
    with two_hosts(delay=0.02) as relay:
        process = start_until_saved(runs, out, steps)
        began = time.monotonic()
        relay.send_signal(signal.SIGUSR1)
        text, _ = process.communicate(timeout=600)
        if process.returncode != 0:
            raise SystemExit(f"a link that was silent for 5 s: exit code {process.returncode}\n{text}")
        if time.monotonic() - began < SILENCE_S:
            raise SystemExit("a link that was silent for 5 s: the run had ended before")
    runs.expect_same("silent", steps)


def over_a_link_that_is_cut(runs):
    out, steps = runs.folder / "cut", 60
    with two_hosts(delay=0.01) as relay:
        process = start_until_saved(runs, out, steps)
        cut_at = time.monotonic()
        relay.send_signal(signal.SIGUSR2)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend((time.monotonic() - cut_at, line) for line in process.stdout))
        reader.start()
        reader.join(timeout=SILENCE_LIMIT_S + GRACE_S)
        process.kill()
        process.wait()
    messages = [at for at, line in lines if line.startswith("strata: rank ") and "silent" in line]
    if not messages:
        raise SystemExit(f"a link that is cut: no message after {SILENCE_LIMIT_S + GRACE_S} s\n"
                         + "".join(line for _, line in lines))
    with two_hosts():
        runs.ranks("cut", "data=2", steps, "--resume")
    runs.expect_same("cut", steps)
    return f"a message after {messages[0]:.1f} s"


def main(strata, model, data):
    probe = "strata-probe"
    if ip("netns", "add", probe, check=False).returncode != 0:
        print("two_hosts: SKIPPED: no network namespace can be made here (needs root and CAP_NET_ADMIN)")
        return
    ip("netns", "del", probe)
    if shutil.which("mpirun") is None:
        print("two_hosts: SKIPPED: there is no mpirun (openmpi-bin)")
        return
    with tempfile.TemporaryDirectory(prefix="strata-hosts-") as folder:
        runs = Runs(os.path.abspath(strata), os.path.abspath(model), os.path.abspath(data), pathlib.Path(folder))
        for case in (over_tcp, over_a_bad_link, over_a_link_that_is_silent_once, over_a_link_that_is_cut):
            began = time.monotonic()
            found = case(runs)
            print(f"two_hosts: {case.__name__}: as one process{', ' + found if found else ''} "
                  f"({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
