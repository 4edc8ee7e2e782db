# SPDX-License-Identifier: Apache-2.0
"""A server under what examples/systemd/strata.service imposes, without systemd: its umask, limit of files, read-only root with the
data alone to write to, no privileges, and its list of system calls (systemd's own, kept in system_calls.txt). It trains, samples,
saves, reads its keys again, and ends. What it writes is its user's alone, also where the launcher's umask is 0.

usage: closed.py STRATA MODEL_DIR
Under root it becomes the user nobody; else the namespaces are the user's own.
"""
import ctypes
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

from lifetimes import Server
from wire import KEY, Wire, ce, wait_until

A = [5, 9, 17, 33, 65, 12, 40, 7]
HERE = pathlib.Path(__file__).parent
UNIT = HERE.parents[1] / "examples/systemd/strata.service"
NOBODY = 65534
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable  # one that nobody may read
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_NO_NEW_PRIVS = 38
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
WRITE, EXECUTE = 2, 4  # of mmap
ALLOW, MASKED_EQ, EQ = 0x7FFF0000, 7, 4


def settings(unit):
    out = {}
    for line in unit.read_text().splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            out.setdefault(name.strip(), []).append(value.strip())
    return out


def groups():
    out, name = {}, ""
    for line in (HERE / "system_calls.txt").read_text().splitlines():
        if line.startswith("@"):
            name = line
        elif line.startswith("  "):
            out.setdefault(name, set()).update(line.split())
    return out


def system_calls(unit):
    """Those that SystemCallFilter allows, line by line as systemd reads it."""
    known, allowed = groups(), set()
    for line in settings(unit)["SystemCallFilter"]:
        names = set().union(*(known[word] if word.startswith("@") else {word} for word in line.removeprefix("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def check_groups():
    """Where systemd is installed, what we keep of it is what it says."""
    if shutil.which("systemd-analyze") is None:
        return "not compared: no systemd-analyze here"
    version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True).stdout.split()[1]
    if version != "252":
        return f"not compared: systemd {version}"

    def members(group):
        said = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", group], capture_output=True, text=True, check=True)
        words = [line.strip() for line in said.stdout.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
        return set().union(*(members(word) if word.startswith("@") else {word} for word in words))
    for name, calls in groups().items():
        assert calls == members(name), (name, calls ^ members(name))
    return "as systemd 252 lists them"


class Compare(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class Cage:
    """For Popen's preexec_fn: the process and what it starts, between fork and exec."""

    def __init__(self, unit, writable):
        said = settings(unit)
        assert said["NoNewPrivileges"] == ["yes"] and said["ProtectSystem"] == ["strict"] and said["MemoryDenyWriteExecute"] == ["yes"]
        # Not every machine lets root raise a limit.
        self.files = min(int(said["LimitNOFILE"][0]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        self.umask, self.writable = int(said["UMask"][0], 8), writable
        self.families = [FAMILIES[name] for name in said["RestrictAddressFamilies"][0].split()]
        self.calls = system_calls(unit)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.seccomp = ctypes.CDLL("libseccomp.so.2")
        self.seccomp.seccomp_init.restype = ctypes.c_void_p

    def must(self, what, result):
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    def __call__(self):
        is_root = os.geteuid() == 0
        ids = os.getuid(), os.getgid()
        self.must("unshare", self.libc.unshare(CLONE_NEWNS | (0 if is_root else CLONE_NEWUSER)))
        if not is_root:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{ids[0]} {ids[0]} 1"), ("gid_map", f"{ids[1]} {ids[1]} 1")):
                pathlib.Path("/proc/self", name).write_text(text)
        self.read_only()
        os.umask(self.umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        self.must("prctl", self.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if is_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        self.filter()

    def read_only(self):
        self.must("mount", self.libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        path = os.fsencode(self.writable)
        self.must("bind", self.libc.mount(path, path, None, MS_BIND, None))
        for target, attributes in ((b"/", (MOUNT_ATTR_RDONLY, 0)), (path, (0, MOUNT_ATTR_RDONLY))):
            value = (ctypes.c_uint64 * 4)(*attributes, 0, 0)
            self.must("mount_setattr", self.libc.syscall(MOUNT_SETATTR, AT_FDCWD, target, AT_RECURSIVE, value, ctypes.sizeof(value)))

    def rule(self, context, call, *compare):
        number = self.seccomp.seccomp_syscall_resolve_name(call.encode())
        if number < 0:  # of another architecture
            return
        array = (Compare * max(1, len(compare)))(*compare)
        done = self.seccomp.seccomp_rule_add_array(ctypes.c_void_p(context), ctypes.c_uint32(ALLOW), number, len(compare), array)
        assert done == 0, (call, done)

    def filter(self):
        """SystemCallFilter, RestrictAddressFamilies and MemoryDenyWriteExecute; all else is EPERM, as SystemCallErrorNumber says."""
        context = self.seccomp.seccomp_init(ctypes.c_uint32(0x00050000 | 1))
        for call in self.calls - {"socket", "mmap", "mprotect", "pkey_mprotect"}:
            self.rule(context, call)
        for family in self.families:
            self.rule(context, "socket", Compare(0, EQ, family, 0))
        for bits in (0, WRITE, EXECUTE):
            self.rule(context, "mmap", Compare(2, MASKED_EQ, WRITE | EXECUTE, bits))
        self.rule(context, "mprotect", Compare(2, MASKED_EQ, EXECUTE, 0))
        assert self.seccomp.seccomp_load(ctypes.c_void_p(context)) == 0


def holds(cage):
    """The cage holds what it should: each of these fails within it, and works outside."""
    inside = cage.writable
    tries = {"writes to the root": "open('/etc/strata-test', 'w')",
             "writes outside the data": f"open({str(pathlib.Path(inside).parent / 'x')!r}, 'w')",
             "becomes root": "os.setresuid(0, 0, 0) or 1 / (os.getuid() == 0)",
             "mounts": "(ctypes.CDLL(None).mount(b'none', b'/mnt', b'tmpfs', 0, None) == 0) or 1 / 0",
             "opens a packet socket": "socket.socket(17, 3, 0)",
             "maps memory to write and run": "mmap.mmap(-1, 4096, prot=7)"}
    for what, code in tries.items():
        done = subprocess.run([PYTHON, "-c", f"import ctypes, mmap, os, socket\n{code}"], preexec_fn=cage, capture_output=True)
        assert done.returncode == 1 and b"Error" in done.stderr, (what, done)
    done = subprocess.run(["/bin/sh", "-c", f"touch {inside}/y && umask && ulimit -n && rm {inside}/y"], preexec_fn=cage,
                          capture_output=True, text=True)
    assert done.stdout.split() == [f"{cage.umask:04o}", str(cage.files)], done
    return len(tries)


def loose(folder):
    """What below a folder somebody else may read or write, or is no file of 0600 or folder of 0700."""
    modes = {path: path.lstat().st_mode for path in folder.rglob("*")}
    assert modes, folder
    return [f"{path}: {mode & 0o7777:04o}" for path, mode in modes.items() if mode & 0o7777 != (0o700 if stat.S_ISDIR(mode) else 0o600)]


def check_backup(strata, state, folder):
    """A backup and what is made of it, by commands whose umask is 0."""
    commands = (["backup", "--data", state, "--out", folder / "state.tar"], ["restore", "--in", folder / "state.tar", "--data", folder / "again"],
                ["backup", "--data", folder / "again", "--out", folder / "state.tar.2"])
    for command in commands:
        subprocess.run([strata, *map(str, command)], umask=0, check=True, capture_output=True, timeout=60)
    assert not loose(folder), loose(folder)


def main():
    strata, model = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        data, keys = pathlib.Path(folder, "data"), pathlib.Path(folder, "keys")
        data.mkdir(mode=0o700)
        keys.write_text(f"{KEY}\n")
        keys.chmod(0o600)
        if os.geteuid() == 0:
            for path in (data, keys):
                os.chown(path, NOBODY, NOBODY)
        cage = Cage(UNIT, str(data))
        compared, tried = check_groups(), holds(cage)
        cage.umask = 0  # the program has its own
        server = Server(strata, model, str(data / "state"), "--keys", str(keys), "--audit", str(data / "audit"), "--memory", "1GiB",
                        "--offload", str(data), keys=True, preexec_fn=cage)
        wire = Wire(server.url, KEY)
        tiny = wire.model(wire.session())
        tiny.run([ce(A)])
        assert "error" not in tiny.step()
        assert "path" in tiny.save("kept")
        saved = wire.result(tiny.op("save_weights_for_sampler", sampling_session_seq_id=0))
        assert wire.sampled(saved["sampling_session_id"], 1, A, max_tokens=8).sequences
        server.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: "keys: read again" in (data / "audit").read_text())
        assert not loose(data), loose(data)
        status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status and "CapEff:\t0000000000000000" in status, status
        assert server.stop() == 0
        assert not loose(data), loose(data)
        copies = pathlib.Path(folder, "copies")
        copies.mkdir()
        check_backup(strata, data / "state", copies)
    print(f"closed: trained, sampled, saved and stopped under {UNIT.name}: {len(cage.calls)} system calls ({compared}), root read-only, "
          f"no privileges; {tried} trespasses refused")


if __name__ == "__main__":
    main()
