# SPDX-License-Identifier: Apache-2.0
"""Hostile peers of a server that speaks TLS, as rows of tests/e2e/hostile.py: `ATTACKS` of (what, want, send(world))."""
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tempfile
import time

from tls import make_certificate
from wire import wait_until

ATTACKS = []
HEADER_TIMEOUT = 10  # what a silent peer has by default


def attack(what, want):
    def register(send):
        ATTACKS.append((what, want, send))
        return send
    return register


def options(folder):
    """Those of serve; and every client of this process trusts the certificate."""
    cert, key = make_certificate(folder, "hostile")
    os.environ["SSL_CERT_FILE"] = str(cert)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


def context():
    made = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    made.check_hostname = False
    return made


def hello():
    """The first bytes of a client that speaks TLS."""
    out = ssl.MemoryBIO()
    client = context().wrap_bio(ssl.MemoryBIO(), out)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def closes(peer, seconds):
    """Whether the server closes the connection within the time; what it says first is read."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        peer.settimeout(max(0.01, end - time.monotonic()))
        try:
            if not peer.recv(65536):
                return "closed"
        except TimeoutError:
            break
        except OSError:
            return "closed"
    return "open"


def tell(world, data, seconds=2.0):
    with socket.create_connection(("127.0.0.1", world.port)) as peer:
        peer.sendall(data)
        return closes(peer, seconds)


attack("plain HTTP", 400)(lambda w: w.raw(b"GET /api/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
attack("bytes that are no TLS", "closed")(lambda w: tell(w, b"\xff\x00" * 500))
attack("a record of an unknown version", "closed")(lambda w: tell(w, b"\x16\x09\x09" + hello()[3:]))
attack("a ClientHello with its lengths wrong", "closed")(lambda w: tell(w, hello()[:9] + b"\xff" * (len(hello()) - 9)))
attack("a ClientHello of which half comes", "closed")(lambda w: tell(w, hello()[:100], HEADER_TIMEOUT + 2))
attack("a handshake that is never finished", "closed")(lambda w: tell(w, hello(), HEADER_TIMEOUT + 2))


@attack("a handshake of two bytes a second", "closed")
def slow(w):
    with socket.create_connection(("127.0.0.1", w.port)) as peer:
        peer.settimeout(0.5)
        begin = time.monotonic()
        for byte in hello():
            try:
                peer.sendall(bytes([byte]))
                if not peer.recv(100):
                    return "closed"
            except TimeoutError:
                pass
            except OSError:
                return "closed"
            if time.monotonic() - begin > HEADER_TIMEOUT + 2:
                return "open"
    return "open"


def key_share_hello(group, size):
    """A ClientHello of TLS 1.3 with one key share, of `group`, that nobody computed."""
    def field(data, width):
        return len(data).to_bytes(width, "big") + data
    share = group.to_bytes(2, "big") + field(b"\x42" * size, 2)
    extensions = b"".join(number.to_bytes(2, "big") + field(data, 2) for number, data in (
        (43, field(b"\x03\x04", 1)), (10, field(group.to_bytes(2, "big"), 2)),
        (13, field(b"\x04\x03\x08\x04\x04\x01", 2)), (51, field(share, 2))))
    body = b"\x03\x03" + os.urandom(32) + field(os.urandom(32), 1) + field(b"\x13\x01", 2) + b"\x01\x00" + field(extensions, 2)
    return b"\x16\x03\x01" + field(b"\x01" + field(body, 3), 2)


@attack("20 hellos whose key share is of ffdhe8192", "closed")
def costly_group(w):
    return next((code for code in (tell(w, key_share_hello(0x0104, 1024)) for _ in range(20)) if code != "closed"), "closed")


@attack("200 handshakes that are never finished, and another tenant's request", 200)
def many(w):
    peers = [socket.create_connection(("127.0.0.1", w.port)) for _ in range(200)]
    for peer in peers:
        peer.sendall(hello())
    code = w.other.get("get_server_capabilities").status_code
    for peer in peers:
        peer.close()
    return code


@attack("700 handshakes that are never finished, and another tenant's new connection", 200)
def more_than_are_kept(w):
    peers = [socket.create_connection(("127.0.0.1", w.port)) for _ in range(700)]
    for peer in peers:
        try:
            peer.sendall(hello())
        except OSError:
            pass  # ended for another one
    try:
        with socket.create_connection(("127.0.0.1", w.port), timeout=10) as peer, context().wrap_socket(peer) as tls:
            tls.sendall(w.head("GET /api/v1/get_server_capabilities HTTP/1.1").replace(w.keys[0].encode(), w.keys[1].encode()))
            return int(tls.recv(64)[9:12])
    finally:
        for peer in peers:
            peer.close()


@attack("TLS 1.1", "refused")
def old(w):
    made = context()
    made.minimum_version, made.maximum_version = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1
    made.set_ciphers("ALL:@SECLEVEL=0")
    try:
        with socket.create_connection(("127.0.0.1", w.port), timeout=5) as peer, made.wrap_socket(peer):
            return "spoken"
    except (ssl.SSLError, ConnectionError):
        return "refused"


@attack("a client that knows no key exchange but static RSA", "refused")
def static_rsa(w):
    made = context()
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers("kRSA:@SECLEVEL=0")
    try:
        with socket.create_connection(("127.0.0.1", w.port), timeout=5) as peer, made.wrap_socket(peer) as tls:
            return tls.cipher()[0]
    except (ssl.SSLError, ConnectionError):
        return "refused"


@attack("SIGHUP with a certificate of another key, and another tenant's new connection", "200, the old one")
def mismatched(w):
    place = pathlib.Path(os.environ["SSL_CERT_FILE"])
    kept, trusts = place.read_text(), context()
    with tempfile.TemporaryDirectory() as folder:
        other = make_certificate(folder, "other")[0].read_text()

    def served():
        with socket.create_connection(("127.0.0.1", w.port), timeout=30) as peer, trusts.wrap_socket(peer) as tls:
            tls.sendall(w.head("GET /api/v1/get_server_capabilities HTTP/1.1").replace(w.keys[0].encode(), w.keys[1].encode()))
            return int(tls.recv(64)[9:12]), ssl.DER_cert_to_PEM_cert(tls.getpeercert(True)).split()

    def told(text):
        return text in pathlib.Path(w.log.name).with_name("audit").read_text()
    try:
        place.write_text(other)
        w.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: told("certificate: the old one stays"), 30), "nothing of it in the audit log"
        code, certificate = served()
    finally:
        place.write_text(kept)
        w.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: told("certificate: read again"), 30)
    return f"{code}, {'the old one' if certificate == kept.split() else 'another one'}"


@attack("a renegotiation", "refused")
def renegotiation(w):
    done = subprocess.run(["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{w.port}"], input="R\n" + "x" * 10,
                          capture_output=True, text=True, timeout=30)
    said = done.stdout + done.stderr
    return "refused" if "RENEGOTIATING" in said and "no renegotiation" in said else said[-300:]


def talk(w):
    """A connection whose handshake is done, as (socket, TLS, what TLS wants sent)."""
    peer = socket.create_connection(("127.0.0.1", w.port), timeout=5)
    arrived, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context().wrap_bio(arrived, out)
    while True:
        try:
            client.do_handshake()
            peer.sendall(out.read())
            return peer, client, out
        except ssl.SSLWantReadError:
            peer.sendall(out.read())
            arrived.write(peer.recv(65536))


def half_record(w):
    peer, client, out = talk(w)
    client.write(w.head("POST /api/v1/asample HTTP/1.1", "Content-Type: application/json", "Content-Length: 9000", body=b" " * 9000))
    peer.sendall(out.read()[:-4000])
    return peer


@attack("a client that goes in the middle of a record, and another tenant's request", 200)
def leaves(w):
    for _ in range(50):
        half_record(w).close()
    return w.other.get("get_server_capabilities").status_code


@attack("a client that says no more in the middle of a record", "closed")
def stops(w):
    with half_record(w) as peer:
        peer.shutdown(socket.SHUT_WR)
        return closes(peer, 3)


@attack("300 connections that idle behind long bodies", "within what they count with")
def idle(w, count=300):
    body = b'{"events":"' + b"x" * 900_000 + b'"}'
    request = w.head("POST /api/v1/telemetry HTTP/1.1", "Content-Type: application/json", f"Content-Length: {len(body)}", body=body)

    def held():
        return next(int(line.split()[1]) for line in open(f"/proc/{w.process.pid}/status") if line.startswith("RssAnon"))
    before, kept = held(), []
    for _ in range(count):
        peer, client, out = talk(w)
        client.write(request)
        peer.sendall(out.read())
        assert peer.recv(65536)
        kept.append(peer)
    grown = (held() - before) / count
    for peer in kept:
        peer.close()
    return "within what they count with" if grown < 112 else f"{grown:.0f} KiB each"


@attack("a record whose last byte was changed", "closed")
def changed(w):
    peer, client, out = talk(w)
    client.write(w.head("GET /api/v1/healthz HTTP/1.1"))
    record = bytearray(out.read())
    record[-1] ^= 1
    with peer:
        peer.sendall(record)
        return closes(peer, 2)
