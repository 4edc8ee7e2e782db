# SPDX-License-Identifier: Apache-2.0
"""examples/systemd/strata.service as systemd itself sees it. `check`: it has no word that systemd does not know, and stays as closed as
systemd can tell without starting it. `start`: a server under it, where systemd runs this machine; it answers, reloads and stops.

usage: unit.py check     or: unit.py start STRATA MODEL_DIR     (exit code 77: skipped, and why)
"""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

UNIT = pathlib.Path(__file__).parents[2] / "examples/systemd/strata.service"
EXPOSURE = 20  # tenths, of 100
PROGRAM = "/usr/local/bin/strata"
SKIPPED = 77


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def call(*command, **more):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=180, **more)


def check():
    if shutil.which("systemd-analyze") is None:
        skip("no systemd-analyze here (Debian package systemd)")
    text = UNIT.read_text()
    assert f"ExecStart={PROGRAM} " in text
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder, UNIT.name)
        unit.write_text(text.replace(PROGRAM, "/bin/true"))
        done = call("systemd-analyze", "verify", "--man=no", unit)
        told = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]  # others' units are not ours
        assert done.returncode == 0 and not told, (done.returncode, told)
        # What is not understood is told, and changes no exit code: so it would be heard.
        unit.write_text(text.replace(PROGRAM, "/bin/true").replace("UMask=", "UMusk="))
        assert "UMusk" in call("systemd-analyze", "verify", "--man=no", unit).stderr
    done = call("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", UNIT)
    assert done.returncode == 0, done.stdout
    print(f"unit: verified; {done.stdout.strip().splitlines()[-1]}")


def start(strata, model):
    if not os.path.isdir("/run/systemd/system"):
        skip("systemd does not run this machine")
    if os.geteuid() != 0:
        skip("only root starts units")
    name = f"strata-test-{os.getpid()}"
    unit = pathlib.Path("/run/systemd/system", name + ".service")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix=name) as folder:  # the unit has a /tmp of its own
        os.chmod(folder, 0o755)
        here = pathlib.Path(folder)
        shutil.copy(strata, here / "strata")
        shutil.copytree(model, here / "model")
        key = call(strata, "keygen").stdout.strip()
        (here / "keys").write_text(key + "\n")
        (here / "serve.toml").write_text(f'model = ["tiny={here}/model"]\nlisten = "127.0.0.1:{port}"\nmetrics-listen = "127.0.0.1:0"\n'
                                         'memory = "1GiB"\n')
        unit.write_text(UNIT.read_text().replace(PROGRAM, str(here / "strata")).replace("/etc/strata/", f"{here}/")
                        .replace("Directory=strata", f"Directory={name}"))
        try:
            assert call("systemctl", "daemon-reload").returncode == 0
            done = call("systemctl", "start", name)  # until READY=1
            assert done.returncode == 0, done.stderr + call("journalctl", "-n", "50", "-u", name).stdout
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/get_server_capabilities", headers={"X-API-Key": key})
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert answer.status == 200
            done = call("systemctl", "reload", name)
            assert done.returncode == 0, done.stderr
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert answer.status == 200
            begin = time.monotonic()
            assert call("systemctl", "stop", name).returncode == 0
            said = call("systemctl", "show", "-p", "Result", "--value", name).stdout.strip()
            assert said == "success", (said, call("journalctl", "-n", "50", "-u", name).stdout)
            print(f"unit: started, reloaded and stopped by systemd, the stop in {time.monotonic() - begin:.1f} s")
        finally:
            call("systemctl", "stop", name)
            unit.unlink(missing_ok=True)
            call("systemctl", "daemon-reload")
            for kept in ("/var/lib/private", "/var/lib", "/var/log/private", "/var/log"):
                path = pathlib.Path(kept, name)
                if path.is_symlink():
                    path.unlink()
                elif path.is_dir():
                    shutil.rmtree(path)


def main():
    if sys.argv[1:] == ["check"]:
        check()
    elif len(sys.argv) == 4 and sys.argv[1] == "start":
        start(os.path.realpath(sys.argv[2]), os.path.realpath(sys.argv[3]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
