# SPDX-License-Identifier: Apache-2.0
"""Records of event files as tensorboard's own package writes them, in hex, for tests/report/event_file_test.cc.

usage: event_golden.py            (prints them)
       event_golden.py --read DIR (reads a folder back: tag, step and value a line; needs tensorboard 2.21)
"""
import io
import sys

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def record(event):
    out = io.BytesIO()
    RecordWriter(out).write(event.SerializeToString())
    return out.getvalue().hex()


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    for tag in sorted(events.Tags()["scalars"]):
        for scalar in events.Scalars(tag):
            print(tag, scalar.step, repr(scalar.value))


def main():
    if sys.argv[1:2] == ["--read"]:
        return read(sys.argv[2])
    value = Summary.Value
    scalars = Summary(value=[value(tag="loss", simple_value=1.25), value(tag="tokens", simple_value=300)])
    print(record(Event(wall_time=1700000000.5, file_version="brain.Event:2")))
    print(record(Event(wall_time=1700000001.25, step=7, summary=scalars)))
    print(record(Event(wall_time=1700000002.0, step=300, session_log=SessionLog(status=SessionLog.START))))


if __name__ == "__main__":
    main()
