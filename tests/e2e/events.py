# SPDX-License-Identifier: Apache-2.0
"""What `strata train --tensorboard` writes, read back by tensorboard's own package: each number of metrics.jsonl, each step
once, also of a run that was killed and resumed. Does nothing where the package is not installed
(tools/requirements/events.txt).

usage: events.py STRATA
"""
import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def float32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def expected(path):
    scalars = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        for name, value in record.items():
            if name != "step" and value is not None:
                scalars.setdefault(name, []).append((record["step"], float32(value)))
    return scalars


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def compare(out, folder):
    want, got = expected(out / "metrics.jsonl"), read(folder)
    assert sorted(want) == sorted(got), (sorted(want), sorted(got))
    for name, values in want.items():
        assert got[name] == values, (name, got[name], values)
    return sum(map(len, want.values()))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        print("events: tensorboard is not installed; not run")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def command(out):
            return [sys.argv[1], "train", "--model", str(ROOT / "models/tiny-qwen3"), "--data",
                    str(ROOT / "examples/answers.jsonl"), "--out", str(folder / out), "--tensorboard",
                    str(folder / (out + "-events")), "--steps", "30", "--save-every", "4", "--eval-every", "7"]

        subprocess.run(command("whole"), check=True, stderr=subprocess.DEVNULL)
        count = compare(folder / "whole", folder / "whole-events")
        metrics = folder / "parts" / "metrics.jsonl"
        with subprocess.Popen(command("parts"), stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 15):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"
        subprocess.run(command("parts") + ["--resume"], check=True, stderr=subprocess.DEVNULL)
        assert len(list((folder / "parts-events").iterdir())) == 2
        count += compare(folder / "parts", folder / "parts-events")
    print(f"events: {count} scalars read back; passed")


if __name__ == "__main__":
    main()
