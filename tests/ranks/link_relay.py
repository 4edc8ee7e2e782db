#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A bad link between two network interfaces: carries each one's frames to the other, late, and loses some.

usage: link_relay.py ONE TWO DELAY_S LOSS_SHARE SEED
       link_relay.py INTERFACE     its frames leave whole: checksums made, at most of the link's size
SIGUSR1 makes it silent for 5 s (what comes meanwhile is lost), SIGUSR2 for good. Prints a line when it is ready.
"""
import ctypes
import fcntl
import heapq
import random
import selectors
import signal
import socket
import struct
import sys
import time

SILENCE_S = 5.0
SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24)  # ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO: left to the hardware, which a veth has not


def send_whole_frames(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for offload in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", offload, 0), 8)
            fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(value)))


def main(one, two, delay, loss, seed):
    ends = {name: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for name in (one, two)}
    selector = selectors.DefaultSelector()
    for name, end in ends.items():
        end.bind((name, 0))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        end.setblocking(False)
        selector.register(end, selectors.EVENT_READ, ends[two if name == one else one])
    silent_until = 0.0

    def fall_silent(number, _frame):
        nonlocal silent_until
        silent_until = time.monotonic() + SILENCE_S if number == signal.SIGUSR1 else float("inf")

    signal.signal(signal.SIGUSR1, fall_silent)
    signal.signal(signal.SIGUSR2, fall_silent)
    chance = random.Random(seed)
    waiting = []  # (when, number, frame, to): a heap
    number = 0
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(pause):
            while True:
                try:
                    frame, sender = key.fileobj.recvfrom(1 << 17)
                except BlockingIOError:
                    break
                if sender[2] == socket.PACKET_OUTGOING:
                    continue
                now = time.monotonic()
                if now < silent_until or chance.random() < loss:
                    continue
                heapq.heappush(waiting, (now + delay, number, frame, key.data))
                number += 1
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, frame, to = heapq.heappop(waiting)
            try:
                to.send(frame)
            except OSError:  # its queue is full, or the interface is down: lost, as on a real link
                pass


if __name__ == "__main__":
    if len(sys.argv) == 2:
        send_whole_frames(sys.argv[1])
        sys.exit(0)
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
