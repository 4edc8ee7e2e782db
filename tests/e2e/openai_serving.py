# SPDX-License-Identifier: Apache-2.0
"""A server for the clients of OpenAI's API."""
import contextlib
import re
import subprocess
import threading

KEY, READER = "tml-" + "a" * 40, "tml-" + "b" * 40


@contextlib.contextmanager
def serving(strata, folder, *options):
    keys = folder / "keys"
    keys.write_text(f"{KEY} alice\n{READER} bob read-only\n")
    keys.chmod(0o600)
    process = subprocess.Popen(
        [strata, "serve", *options, "--keys", keys, "--data", folder / "data", "--listen", "127.0.0.1:0",
         "--metrics-listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = iter(process.stdout.readline, "")
    urls = {}
    for line in lines:
        found = re.match(r"(listening|metrics) on (\S+)", line)
        if found:
            urls[found[1]] = found[2]
        if len(urls) == 2:
            break
    threading.Thread(target=process.communicate, daemon=True).start()
    try:
        yield urls["listening"], urls["metrics"]
    finally:
        process.terminate()
        assert process.wait() == 0
