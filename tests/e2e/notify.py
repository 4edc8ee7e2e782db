# SPDX-License-Identifier: Apache-2.0
"""What `strata serve` tells a service manager (sd_notify), heard by a socket in its place: READY=1 when it serves, WATCHDOG=1 again and
again, RELOADING=1 and READY=1 around a reload, STOPPING=1 at its end.

usage: notify.py STRATA MODEL_DIR
"""
import os
import pathlib
import signal
import socket
import sys
import tempfile
import time

from faults import Faults
from lifetimes import Server
from wire import KEY, Wire

HANGS = 45.0  # seconds after which something is not slow, but hangs
NEW_KEY = "tml-fedcba9876543210fedcba9876543210"


class Manager:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.watchdogs = 0

    def hear(self, seconds=HANGS):
        """What is said next but for WATCHDOG=1, as a dict; null: nothing."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                said = self.socket.recv(4096).decode()
            except TimeoutError:
                break
            if said != "WATCHDOG=1":
                return dict(line.split("=", 1) for line in said.splitlines())
            self.watchdogs += 1
        return None


def status(server, key):
    return Wire(server.url, key).get("get_server_capabilities").status_code


def main():
    strata, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        manager, keys, faults = Manager(f"{folder}/manager"), pathlib.Path(folder, "keys"), Faults(folder)
        keys.write_text(f"{KEY} alice\n")
        keys.chmod(0o600)
        server = Server(strata, model, f"{folder}/data", "--keys", str(keys), "--memory", "1GiB", keys=True, env={
            **faults.environment(), "NOTIFY_SOCKET": f"{folder}/manager", "WATCHDOG_USEC": "400000"})
        assert manager.hear() == {"READY": "1"}
        assert status(server, KEY) == 200
        assert manager.hear(2) is None and manager.watchdogs >= 3, manager.watchdogs

        faults.set(hanging="/keys")
        keys.write_text(f"{KEY} alice\n{NEW_KEY} bob\n")
        begin = time.monotonic_ns() // 1000
        server.process.send_signal(signal.SIGHUP)
        told = manager.hear()
        assert set(told) == {"RELOADING", "MONOTONIC_USEC"} and told["RELOADING"] == "1", told
        assert begin <= int(told["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000, told
        seen, early = manager.watchdogs, manager.hear(2)
        alive = manager.watchdogs - seen
        assert status(server, KEY) == 200
        faults.set()
        assert early is None, f"{early} while the keys' file was not read yet"
        assert alive >= 3, "a reload holds up the watchdog"
        assert manager.hear() == {"READY": "1"}
        assert status(server, NEW_KEY) == 200, "the new keys do not hold when the reload is done"

        keys.write_text("rubbish\n")  # a reload that changes nothing ends as well
        server.process.send_signal(signal.SIGHUP)
        assert "RELOADING" in manager.hear() and manager.hear() == {"READY": "1"}
        assert status(server, NEW_KEY) == 200

        server.process.send_signal(signal.SIGTERM)
        assert manager.hear() == {"STOPPING": "1"}
        assert server.process.wait(HANGS) == 0
    print("notify: READY, WATCHDOG, RELOADING, READY and STOPPING were heard, each when it was true")


if __name__ == "__main__":
    main()
