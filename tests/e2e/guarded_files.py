# SPDX-License-Identifier: Apache-2.0
"""Files that the program does not take as they are: backups without the right --archive-key, and a data directory that others may read.

usage: guarded_files.py STRATA MODEL_DIR
"""
import io
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile

from lifetimes import Server
from wire import KEY, Model, Wire, ce

A = [5, 9, 17, 33, 65, 12, 40, 7]
NOBODY = 65534
HANGS = 60


def run(strata, *command):
    done = subprocess.run([strata, *map(str, command)], capture_output=True, text=True, timeout=HANGS)
    return done.returncode, done.stdout + done.stderr


def trained(strata, model, data):
    """The path of a checkpoint in a new folder."""
    server = Server(strata, model, str(data), "--memory", "1GiB")
    wire = Wire(server.url, KEY)
    path = wire.model(wire.session()).save("kept")["path"]
    assert server.stop() == 0
    return path


def loads(strata, model, data, path, *options):
    server = Server(strata, model, str(data), "--memory", "1GiB", *options)
    wire = Wire(server.url, KEY)
    done = wire.result(wire.post("load_weights", {"session_id": wire.session(), "model_seq_id": 0, "path": path}))
    Model(wire, done["model_id"]).run([ce(A)])
    assert server.stop() == 0


def changed(tar, out):
    """The same with one name and its place in the list changed, by somebody who has no key."""
    with tarfile.open(tar) as old, tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as new:
        for entry in old.getmembers():
            content = old.extractfile(entry).read()
            if entry.name == "MANIFEST":
                content = content.replace(b"adapter_config.json", b"adapter_confih.json")
            entry.name, entry.size = entry.name.replace("adapter_config.json", "adapter_confih.json"), len(content)
            new.addfile(entry, io.BytesIO(content))


def archive_keys(strata, model, at):
    """backup, check --in and restore with the right key, another one, none, and a key that is none."""
    path = trained(strata, model, at / "state")
    for name, text in (("key", "5" * 64 + "\n"), ("wrong", "6" * 64 + "\n"), ("short", "5" * 31)):
        (at / name).write_text(text)
        (at / name).chmod(0o600)
    with_key, without, forged = at / "with.tar", at / "without.tar", at / "forged.tar"
    assert run(strata, "backup", "--data", at / "state", "--out", with_key, "--archive-key", at / "key")[0] == 0
    assert run(strata, "backup", "--data", at / "state", "--out", without)[0] == 0
    changed(with_key, forged)
    code, said = run(strata, "backup", "--data", at / "state", "--out", at / "x.tar", "--archive-key", at / "short")
    assert code == 2 and "--archive-key" in said and not (at / "x.tar").exists(), (code, said)
    code, said = run(strata, "check", "--data", at / "state", "--archive-key", at / "key")
    assert code == 2 and "--archive-key" in said, (code, said)
    cases = [(with_key, "key", ""), (with_key, None, ""), (without, None, ""), (with_key, "wrong", "made with another key"),
             (without, "key", "not authenticated"), (forged, "key", "changed"), (with_key, "short", "--archive-key"),
             (with_key, "none", "none")]
    for tar, key, refused in cases:
        more = [] if key is None else ["--archive-key", at / key]
        for command in (["check", "--in", tar, *more], ["restore", "--in", tar, "--data", at / "restored", *more]):
            code, said = run(strata, *command)
            assert (code != 0) == bool(refused) and refused in said, (tar.name, key, command[0], code, said)
            assert key != "short" or (code == 2 and "damage" not in said), said  # the option is at fault, not the backup
            assert not refused or not (at / "restored").exists(), "a restoration that was refused leaves something"
            if key is None and command[0] == "check":
                assert "not checked" in said, said  # who wrote it
        if not refused:
            if key:
                loads(strata, model, at / "restored", path)
            shutil.rmtree(at / "restored")
    return len(cases)


def loose_folders(strata, model, at):
    """A data directory that others may read: one's own is made narrow, another user's is refused, and is as it was."""
    own = at / "own"
    path = trained(strata, model, own)
    own.chmod(0o755)
    loads(strata, model, own, path)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    if os.geteuid() != 0:
        return "skipped: a data directory of another user needs root"
    for mode in (0o755, 0o750, 0o705):
        own.chmod(mode)
        os.chown(own, NOBODY, NOBODY)
        code, said = run(strata, "serve", "--model", f"tiny={model}", "--data", own, "--no-keys", "--listen", "127.0.0.1:0",
                         "--metrics-listen", "127.0.0.1:0", "--memory", "1GiB")
        assert code not in (0, 3) and str(own) in said and "another user's" in said and "listening" not in said, (code, said)
        assert stat.S_IMODE(own.stat().st_mode) == mode and own.stat().st_uid == NOBODY
        loads(strata, model, own, path, "--allow-loose-modes")
        assert stat.S_IMODE(own.stat().st_mode) == mode
    own.chmod(0o700)
    loads(strata, model, own, path)
    return "another user's data directory was refused with 3 modes"


def main():
    strata, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        (at / "a").mkdir()
        (at / "b").mkdir()
        cases = archive_keys(strata, model, at / "a")
        print(f"guarded_files: {cases} backups and keys; {loose_folders(strata, model, at / 'b')}")


if __name__ == "__main__":
    main()
