# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes before a handler sees them: framings that two readers may read differently, and lines without an end."""
import resource
import select
import socket

MOST = 64 << 20  # bytes that an attack sends at most


def framed(world, *headers, version="1.1", body=b""):
    """A request framed so, with another one behind it: the status of the first, and whether the second was run."""
    first = world.head(f"POST /api/v1/session_heartbeat HTTP/{version}", "Content-Type: application/json", *headers, body=body)
    second = world.head("GET /api/v1/healthz HTTP/1.1", key=False)
    reply = b""
    with socket.create_connection(("127.0.0.1", world.port), timeout=5) as peer:
        peer.sendall(first + second)
        while piece := peer.recv(4096):
            reply += piece
    return reply[9:12].decode() + ("" if reply.count(b"HTTP/1.1 ") == 1 else ", and the next one is run")


def endless(world, head, piece, most=MOST):
    """The status of what answers a head and this piece again and again; 0: none within `most` bytes."""
    with socket.create_connection(("127.0.0.1", world.port), timeout=5) as peer:
        peer.sendall(head)
        sent = 0
        while sent < most and not select.select([peer], [], [], 0)[0]:
            try:
                peer.sendall(piece)
            except OSError:
                break
            sent += len(piece)
        try:
            reply = peer.recv(4096) if select.select([peer], [], [], 1)[0] else b""
        except OSError:
            return 0
    return int(reply[9:12]) if reply.startswith(b"HTTP/1.1 ") else 0


def chunked(world, path, key, start):
    line = f"{'POST' if key else 'GET'} {path} HTTP/1.1"
    return world.head(line, "Content-Type: application/json", "Transfer-Encoding: chunked", key=key) + start


def absolute(world, host):
    return str(world.raw(f"GET http://{host}/api/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()))


def unfinished_headers(w, count=1500, size=15_000):
    """Headers of which the end does not come, on connections of their own: how the first ones end, and another tenant."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    start = w.head("GET /api/v1/healthz HTTP/1.1", "X: " + "a" * size, key=False)[:-4]
    peers, ends = [], set()
    for _ in range(count):
        peers.append(socket.create_connection(("127.0.0.1", w.port)))
        try:
            peers[-1].sendall(start)
        except OSError:
            pass  # refused already
    try:
        for peer in peers[:20]:
            peer.settimeout(20)
            try:
                ends.add(peer.recv(64)[9:12].decode() or "closed")
            except ConnectionResetError:
                ends.add("closed")
        return f"{', '.join(sorted(ends))}; {w.other.get('get_server_capabilities').status_code}"
    finally:
        for peer in peers:
            peer.close()


def many_fields(w, count=3000):
    """Headers of 4,000 fields each on connections that stay, then as many of a hundred: how they are answered, and the memory."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before, codes = w.memory(), set()
    for fields in (4000, 90):
        peers = []
        for _ in range(count):
            peers.append(socket.create_connection(("127.0.0.1", w.port)))
            try:
                peers[-1].sendall(w.head("GET /api/v1/usage HTTP/1.1", key=False)[:-2] + b"a:\r\n" * fields + b"\r\n")
            except OSError:
                pass  # refused already
        codes |= {peer.recv(64)[9:12].decode() for peer in peers[:20] if select.select([peer], [], [], 2)[0]}
        grown = w.memory() - before
        for peer in peers:
            peer.close()
        if grown > 128 << 20:
            return f"{grown >> 20} MiB"
    return ", ".join(sorted(codes))


FRAMINGS = [
    *((f"Transfer-Encoding: {coding}, and a request behind it", "400", lambda w, coding=coding: framed(w, f"Transfer-Encoding: {coding}"))
      for coding in ("xchunked", "identity", "gzip, chunked", "chunked, identity", '"chunked"')),
    ("Transfer-Encoding and Content-Length, and a request behind them", "400",
     lambda w: framed(w, "Content-Length: 2", "Transfer-Encoding: xchunked")),
    ("Transfer-Encoding in HTTP/1.0, and a request behind it", "400", lambda w: framed(w, "Transfer-Encoding: chunked", version="1.0")),
    ("two Content-Length headers that agree, and a request behind them", "400",
     lambda w: framed(w, "Content-Length: 2", "Content-Length: 2")),
    ("a folded Transfer-Encoding, and a request behind it", "400", lambda w: framed(w, "Transfer-Encoding:\r\n chunked")),
    ("a folded trailer, and a request behind it", "400",
     lambda w: framed(w, "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\nX: a\r\n Content-Length: 2\r\n\r\n")),
    ("two Host headers, and a request behind them", "400", lambda w: framed(w, "Host: 127.0.0.1", "Host: 127.0.0.1")),
    ("two X-API-Key headers, and a request behind them", "400", lambda w: framed(w, "X-API-Key: tml-another")),
    ("a target in absolute form", "200", lambda w: absolute(w, "127.0.0.1")),
    ("a target in absolute form, of another site", "421", lambda w: absolute(w, "evil.example")),
]
ENDLESS = [
    ("a chunk's line without an end, at healthz", 413, lambda w: endless(w, chunked(w, "/api/v1/healthz", False, b"5;"), b"a" * 65536)),
    ("a chunk's line without an end", 400, lambda w: endless(w, chunked(w, "/api/v1/session_heartbeat", True, b"5;"), b"a" * 65536)),
    ("trailers without an end", 400,
     lambda w: endless(w, chunked(w, "/api/v1/session_heartbeat", True, b"0\r\n"), b"a: b\r\n" * 10000)),
    ("1,500 headers of which the end does not come; another tenant's request", "closed; 200", unfinished_headers),
    ("3,000 headers of 4,000 fields without a key; then of 90, on connections that stay", "401, 431", many_fields),
]
