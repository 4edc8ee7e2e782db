# SPDX-License-Identifier: Apache-2.0
"""Bad days of tests/e2e/chaos.py whose faults are files that are read: a pipe that nobody writes to in place of each of them, and
reads that hang. A start, and the commands for backups, end with a message that names the file; a server that runs serves on."""
import contextlib
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import threading
import time

from chaos_files import certificate
from faults import Faults
from wire import KEY, Model, Wire, ce, wait_until

A = [5, 9, 17, 33, 65, 12, 40, 7]
HANGS = 45.0  # seconds after which something is not slow, but hangs
OTHER_KEY = "tml-fedcba9876543210fedcba9876543210"


class House:
    """A folder with all the files that a server reads, and a checkpoint that one has written."""

    def __init__(self, strata, model, folder):
        self.strata, self.folder = strata, pathlib.Path(folder)
        self.data, self.log = self.folder / "state", self.folder / "log"
        cert, key = certificate(folder, "localhost", "ec")
        self.certificate = cert
        self.write("cert.pem", cert)
        self.write("key.pem", key)
        self.write("keys", f"{KEY} alice\n")
        self.write("admin", "tml-00000000000000000000000000000000\n")
        self.write("archive.key", "k" * 64)
        self.write("serve.toml", 'memory = "1GiB"\n')
        shutil.copytree(model, self.folder / "model")
        with self.server() as wire:
            tiny = wire.model(wire.session())
            self.kept = tiny.save("kept")["path"]
            self.sampler = tiny.save("sampled", "save_weights_for_sampler")["path"]
        self.run("backup", "--data", self.data, "--out", self.folder / "state.tar", "--archive-key", self.folder / "archive.key")
        record = next(path for path in self.data.rglob("strata.json") if self.kept in path.read_text())
        shutil.copytree(record.parent, self.folder / "adapter")
        self.record, self.weights = record, record.with_name("adapter_model.safetensors")

    def write(self, name, text):
        with open(os.open(self.folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)

    def run(self, *command):
        """(exit code, what it said); None: it hung, and was killed."""
        try:
            done = subprocess.run([self.strata, *map(str, command)], capture_output=True, text=True, timeout=HANGS)
            return done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            return None, "it hung"

    def command(self, *more):
        at = self.folder
        return [self.strata, "serve", "--model", f"tiny={at}/model", "--data", str(self.data), "--keys", f"{at}/keys", "--admin-keys",
                f"{at}/admin", "--tls-cert", f"{at}/cert.pem", "--tls-key", f"{at}/key.pem", "--audit", f"{at}/audit", "--config",
                f"{at}/serve.toml", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", *map(str, more)]

    def start(self, *more, **process):
        with open(self.log, "w") as log:
            return subprocess.Popen(self.command(*more), stdout=log, stderr=log, **process)

    def said(self):
        return self.log.read_text(errors="replace")

    def url(self, process):
        """Of a server that has started; None: it has ended; fails where it does neither."""
        assert wait_until(lambda: process.poll() is not None or "metrics on " in self.said(), HANGS), "neither served nor ended"
        found = [line for line in self.said().splitlines() if "listening on https://" in line]
        return found[0].split()[-1] if found and process.poll() is None else None

    def wire(self, url, key=KEY):
        return Wire(url, key, verify=ssl.create_default_context(cadata=self.certificate))

    @contextlib.contextmanager
    def server(self, *more, **process):
        """A client of a server that must start, and end in good order."""
        running = self.start(*more, **process)
        try:
            url = self.url(running)
            assert url is not None, self.said()
            wire = self.wire(url)
            wire.process = running
            yield wire
            running.send_signal(signal.SIGTERM)
            assert running.wait(HANGS) in (0, 3)
        finally:
            running.kill()
            running.wait()

    @contextlib.contextmanager
    def pipe_at(self, path):
        """Nobody writes to it. In one step: a server that reopens its audit log makes the file that is not there."""
        aside, pipe = path.with_name(path.name + ".aside"), path.with_name(path.name + ".pipe")
        was_there = path.exists()
        os.mkfifo(pipe, 0o600)
        if was_there:
            path.rename(aside)
        pipe.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            if was_there:
                aside.rename(path)


def beats_during(wire, seconds, hang=HANGS):
    """Heartbeats of a session for so long: each is answered, and before everybody would call it hanging."""
    session, end = wire.session(), time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        code = wire.post("session_heartbeat", {"session_id": session}).status_code
        assert code == 200 and time.monotonic() - begin < hang, (code, time.monotonic() - begin)
        time.sleep(0.05)


def refuses(house, what, path, code, said):
    """What is wrong with how a command met a pipe at `path`."""
    if code is None:
        return [f"{what}: a pipe at {path.name}: it hung for {HANGS:.0f} s"]
    if code == 0:
        return [f"{what}: a pipe at {path.name}: exit code 0: {said[-200:]}"]
    return [] if path.name.removesuffix("-wal") in said else [f"{what}: a pipe at {path.name}: exit code {code}, and no word of it: {said[-300:]}"]


def meets_a_pipe(house, path):
    """A start while a pipe stands there: it ends and says where, or serves; then what needs the file fails, and nothing else."""
    with house.pipe_at(path):
        process = house.start("--adapter", f"helper={house.folder}/adapter")
        try:
            try:
                url = house.url(process)
            except AssertionError:
                return [f"serve: a pipe at {path.name}: it neither serves nor ends within {HANGS:.0f} s: {house.said()[-300:]}"]
            if url is None:
                return refuses(house, "serve", path, process.wait(HANGS), house.said())
            if path not in (house.record, house.weights):
                return [f"serve: a pipe at {path.name}: it serves"]
            wire = house.wire(url)
            loading = wire.post("load_weights", {"session_id": wire.session(), "model_seq_id": 0, "path": house.kept})
            beats_during(wire, 1)
            done = wire.result(loading) if loading.status_code == 200 else loading.json()
            is_refused = "error" in done or "detail" in done or path == house.record  # which a load does not read
            return [] if is_refused else [f"serve: a pipe at {path.name}: its checkpoint was loaded"]
        finally:
            process.kill()
            process.wait()


def pipes(strata, model, data):
    """A pipe in place of each file that is read: at a start, at backup, check and restore, and at SIGHUP."""
    house = House(strata, model, data)
    at, wrong = house.folder, []
    state = [house.data / "secret", house.data / "checkpoints/fingerprint", house.data / "strata.db", house.data / "strata.db-wal", house.record,
             house.weights]
    given = [at / name for name in ("keys", "admin", "cert.pem", "key.pem", "audit", "serve.toml", "model/config.json", "model/tokenizer.json",
                                    "model/model.safetensors", "adapter/adapter_config.json", "adapter/adapter_model.safetensors")]
    for path in given + state:
        wrong += meets_a_pipe(house, path)
    tar, key, other = at / "state.tar", at / "archive.key", at / "other"
    commands = [("backup", "--data", house.data, "--out", at / "new.tar", "--archive-key", key),
                ("restore", "--in", tar, "--data", other, "--archive-key", key), ("check", "--in", tar, "--archive-key", key),
                ("check", "--data", house.data)]
    for command in commands:
        assert house.run(*command)[0] == 0, command  # without a pipe
        (at / "new.tar").unlink(missing_ok=True)
        shutil.rmtree(other, ignore_errors=True)
        for path in [given_path for given_path in (tar, key) if given_path in command] + (state if house.data in command else []):
            with house.pipe_at(path):
                code, said = house.run(*command)
                if path.name != "strata.db-wal" or code != 0:  # it is there only after a crash
                    wrong += refuses(house, " ".join(map(str, command[:2])), path, code, said)
            (at / "new.tar").unlink(missing_ok=True)
            shutil.rmtree(other, ignore_errors=True)
    with house.server() as wire:
        for path in (at / name for name in ("keys", "admin", "cert.pem", "key.pem", "audit", "serve.toml")):
            with house.pipe_at(path):
                wire.process.send_signal(signal.SIGHUP)
                beats_during(wire, 1)
                beats_during(house.wire(wire.url), 0.2)  # a new connection
                if path.name == "audit":
                    assert isinstance(wire.result(wire.model(wire.session()).send([ce(A)])), bytes)
            wire.process.send_signal(signal.SIGHUP)
    assert not wrong, "\n".join(wrong)


def hung_reloads(house, faults):
    """SIGHUP while a file hangs: the old keys and the old certificate stay until it is read; then the new ones hold."""
    at = house.folder
    with house.server(env=faults.environment()) as wire:
        for name in ("keys", "admin", "cert.pem", "key.pem", "audit", "serve.toml"):
            house.write("keys", f"{KEY} alice\n{OTHER_KEY} bob\n")
            faults.set(hanging=f"/{name}")
            wire.process.send_signal(signal.SIGHUP)
            beats_during(wire, 2)
            beats_during(house.wire(wire.url), 0.2)
            newcomer = house.wire(wire.url, OTHER_KEY).get("get_server_capabilities").status_code
            assert newcomer == 401 or name in ("audit", "serve.toml"), (name, newcomer)
            assert isinstance(wire.result(wire.model(wire.session()).send([ce(A)])), bytes), name
            faults.set()
            assert wait_until(lambda: house.wire(wire.url, OTHER_KEY).get("get_server_capabilities").status_code == 200, HANGS), name
            house.write("keys", f"{KEY} alice\n")
            wire.process.send_signal(signal.SIGHUP)
            assert wait_until(lambda: house.wire(wire.url, OTHER_KEY).get("get_server_capabilities").status_code == 401, HANGS), name
    assert (at / "audit").read_text().count('"seq":')


def hung_checkpoints(house, faults):
    """The files of one tenant's checkpoint hang: its load or its archive waits for them, and everybody else is served."""
    with house.server(env=faults.environment()) as wire:
        run, kind, name = house.kept.removeprefix("tinker://").split("/")
        archive = f"training_runs/{run}/checkpoints/{kind}/{name}/archive"
        load = {"session_id": wire.session(), "model_seq_id": 0, "path": house.kept}

        def loaded():
            done = wire.result(wire.post("load_weights", load))
            assert "error" not in done, done
            Model(wire, done["model_id"]).run([ce(A)])

        def archived():
            code = house.wire(wire.url).get(archive, timeout=120).status_code
            assert code == 200, code
        for number, (hanging, work) in enumerate([("/strata.json", loaded), ("/adapter_config.json", loaded),
                                                  ("/adapter_model.safetensors", loaded), ("/adapter_model.safetensors", archived)]):
            load["model_seq_id"] = number
            faults.set(hanging=hanging)
            faulty = []

            def watched():
                try:
                    work()  # noqa: B023: it is joined below
                except BaseException as fault:  # noqa: BLE001: reported below
                    faulty.append(fault)  # noqa: B023
            thread = threading.Thread(target=watched)
            thread.start()
            try:
                beside = house.wire(wire.url)
                beats_during(beside, 2)
                assert isinstance(beside.result(beside.model(beside.session()).send([ce(A)])), bytes), hanging
            finally:
                faults.set()
                thread.join(120)
            assert not thread.is_alive() and not faulty, (hanging, faulty)


def hung_starts(strata, model, data):
    """A start that waits for a file that hangs is ended by SIGTERM."""
    faults, house, wrong = Faults(data), House(strata, model, data), []
    for name in ("keys", "admin", "cert.pem", "key.pem", "audit", "serve.toml", "secret", "fingerprint", "strata.db", "config.json"):
        faults.set(hanging=f"/{name}")
        process = house.start(env=faults.environment())
        try:
            time.sleep(2)
            process.send_signal(signal.SIGTERM)
            process.wait(HANGS)
        except subprocess.TimeoutExpired:
            wrong.append(f"serve: {name} hangs: SIGTERM did not end the start within {HANGS:.0f} s")
        finally:
            faults.set()
            process.kill()
            process.wait()
        if len(wrong) > 1:
            break  # each takes its time
    assert not wrong, "\n".join(wrong)


def hung_reads(strata, model, data):
    """Opens and reads of one file hang while a server runs, each of those that it reads then."""
    faults, house = Faults(data), House(strata, model, data)
    hung_reloads(house, faults)
    hung_checkpoints(house, faults)
