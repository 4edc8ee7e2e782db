# SPDX-License-Identifier: Apache-2.0
"""The official SDK through TLS, with a certificate of our own; and what a client that does not trust it sees.

usage: tls.py STRATA MODEL_DIR
"""
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def make_certificate(folder, name):
    cert, key = pathlib.Path(folder, "cert.pem"), pathlib.Path(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
                   check=True, capture_output=True)
    return cert, key


def subject(url, cert):
    host, port = url.removeprefix("https://").split(":")
    pem = ssl.get_server_certificate((host, int(port)))
    return subprocess.run(["openssl", "x509", "-noout", "-subject"], input=pem, text=True, check=True,
                          capture_output=True).stdout


def tour(url):
    """In a process of its own, since the trusted certificates are read when the SDK is imported."""
    import tinker
    from tinker import types
    client = tinker.ServiceClient(base_url=url).create_lora_training_client(base_model="tiny", rank=4).result()
    datum = types.Datum(model_input=types.ModelInput.from_ints([1, 2, 3]),
                        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]})
    first = client.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"]
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    assert client.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"] < first
    sampler = client.save_weights_and_get_sampling_client(name="one").result()
    got = sampler.sample(types.ModelInput.from_ints([1, 2]), num_samples=1,
                         sampling_params=types.SamplingParams(max_tokens=3)).result()
    assert len(got.sequences[0].tokens) >= 1


def main():
    if sys.argv[1] == "--tour":
        tour(sys.argv[2])
        return
    strata, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "first")
        tml = subprocess.run([strata, "keygen"], capture_output=True, text=True, check=True).stdout.strip()
        keys = pathlib.Path(folder, "keys")
        keys.write_text(tml + "\n")
        keys.chmod(0o600)
        process = subprocess.Popen(
            [strata, "serve", "--model", f"tiny={model}", "--data", folder + "/data", "--keys", str(keys), "--listen",
             "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key)],
            stdout=subprocess.PIPE, text=True, bufsize=1)
        try:
            url = next(line.split()[-1] for line in process.stdout if "listening on https://" in line)
            env = {**os.environ, "SSL_CERT_FILE": str(cert), "TINKER_API_KEY": tml}
            subprocess.run([sys.executable, __file__, "--tour", url], check=True, env=env, timeout=300)
            try:
                urllib.request.urlopen(url + "/api/v1/healthz", timeout=10)
                raise AssertionError("an unknown issuer was trusted")
            except urllib.error.URLError as fault:
                assert isinstance(fault.reason, ssl.SSLCertVerificationError), fault
            assert "first" in subject(url, cert)
            make_certificate(folder, "second")
            process.send_signal(signal.SIGHUP)
            end = time.monotonic() + 10
            while "second" not in subject(url, cert):
                assert time.monotonic() < end, "SIGHUP did not bring the new certificate"
                time.sleep(0.1)
            context = ssl.create_default_context(cafile=str(cert))
            with urllib.request.urlopen(url + "/api/v1/healthz", timeout=10, context=context) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    print("tls: passed")


if __name__ == "__main__":
    main()
