# SPDX-License-Identifier: Apache-2.0
"""Files that fail and a clock that jumps, for a server under test: faulty_files.cc, built on the spot, and its controls.
And a PostgreSQL that can be killed."""
import atexit
import errno
import mmap
import os
import pathlib
import pwd
import signal
import struct
import subprocess
import tempfile
import time

FIELDS = "<8iqii128s"


class Faults:
    """environment() is for the server's process; set() holds from then on for what that process does."""

    def __init__(self, folder):
        self.library = pathlib.Path(folder, "faulty_files.so")
        source = pathlib.Path(__file__).with_name("faulty_files.cc")
        subprocess.run(["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", str(source),
                        "-o", str(self.library), "-ldl"], check=True)
        self.controls = pathlib.Path(folder, "controls")
        self.controls.write_bytes(bytes(struct.calcsize(FIELDS)))
        with open(self.controls, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def environment(self):
        return {**os.environ, "LD_PRELOAD": str(self.library), "FAULTY_FILES": str(self.controls)}

    def set(self, write_every=0, write_errno=errno.ENOSPC, sync_every=0, sync_errno=errno.EIO, rename_every=0,
            rename_errno=errno.EIO, create_every=0, sync_delay_ms=0, clock_offset=0, read_delay_ms=0, hanging=""):
        """A fault once in so many calls; 0: never. Files whose path ends as `hanging` does hang at each open and read until
        something else is set."""
        self.memory[:] = struct.pack(FIELDS, write_every, write_errno, sync_every, sync_errno, rename_every,
                                     rename_errno, create_every, sync_delay_ms, clock_offset, read_delay_ms,
                                     600_000 if hanging else 0, hanging.encode())


class Postgres:
    """One of its own, without a network; as the user postgres where we are root, which it refuses to run as."""
    PROGRAMS = "/usr/lib/postgresql/15/bin"

    def __init__(self, folder):
        self.folder = tempfile.mkdtemp(prefix="pg-")  # the path of a socket is short
        self.log = open(pathlib.Path(folder, "postgres.log"), "ab")
        self.user = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.url = f"postgresql:///postgres?host={self.folder}&user=strata"
        self.process = None
        subprocess.run([self.PROGRAMS + "/initdb", "-D", self.folder + "/data", "-U", "strata", "-A", "trust",
                        "--no-instructions", "-E", "UTF8", "--locale=C"],
                       check=True, stdout=self.log, stderr=self.log, cwd=self.folder, **self.user)
        atexit.register(self.kill)
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [self.PROGRAMS + "/postgres", "-D", self.folder + "/data", "-k", self.folder, "-c", "listen_addresses=", "-c",
             "shared_buffers=16MB"], stdout=self.log, stderr=self.log, cwd=self.folder, start_new_session=True, **self.user)
        for _ in range(300):
            ready = subprocess.run([self.PROGRAMS + "/pg_isready", "-q", "-h", self.folder, "-U", "strata", "-d", "postgres"])
            if ready.returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError("postgres did not start")

    def signal_all(self, number):
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        for pid in [self.process.pid, *map(int, children)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def freeze(self, is_frozen):
        """It answers nothing, and its connections stay."""
        self.signal_all(signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def kill(self):
        """At once, with all its children: no connection is ended in good order."""
        if self.process is not None:
            self.signal_all(signal.SIGKILL)
            self.process.wait()
            self.process = None
