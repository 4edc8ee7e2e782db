"""The live page in headless Chromium: a run started by the SDK, and its curve seen to grow.

usage: page.py STRATA MODEL_DIR [SCREENSHOT.png]     (needs chromium and chromium-driver)
"""
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings

warnings.simplefilter("ignore")
import tinker  # noqa: E402
from tinker import types  # noqa: E402

HOSTILE = "<img src=x onerror=document.title='owned'>"


class Browser:
    """As much of WebDriver as this test needs."""

    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if "successfully on port" in line:
                self.base = "http://127.0.0.1:" + line.rstrip(" .\n").split("on port ")[1]
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1100,1250"]
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + made["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def open(self, url):
        self.call("POST", self.session + "/url", {"url": url})

    def run(self, script, *args):
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": list(args)})

    def wait(self, script, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            got = self.run(script)
            if got:
                return got
            time.sleep(0.2)
        raise AssertionError(f"never true: {script}")

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", self.session + "/screenshot")))

    def messages(self):
        return [m["message"] for m in self.call("POST", self.session + "/se/log", {"type": "browser"})]

    def close(self):
        self.call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait()


def serve(strata, model, data, alice, bob, admin):
    for name, keys in (("keys", f"{alice} alice\n{bob} bob\n"), ("admin", f"{admin} root\n")):
        with open(os.open(f"{data}/{name}", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(keys)
    process = subprocess.Popen(
        [strata, "serve", "--model", f"tiny={model}", "--data", f"{data}/state", "--listen", "127.0.0.1:0",
         "--metrics-listen", "127.0.0.1:0", "--keys", f"{data}/keys", "--admin-keys", f"{data}/admin",
         "--memory", "2GiB"], stdout=subprocess.PIPE, text=True)
    urls = {}
    for line in process.stdout:
        if " on http://" in line:
            name, url = line.split(" on ")
            urls[name.strip()] = url.strip()
            if len(urls) == 2:
                return process, urls["listening"], urls["metrics"]
    raise AssertionError("the server did not start")


def datum(tokens):
    n = len(tokens) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[n]),
                        "weights": types.TensorData(data=[1.0] * n, dtype="float32", shape=[n])})


def train(client, steps):
    for step in range(steps):
        texts = [[(7 * i * i + 3 * i + step % 4 + k) % 90 + 5 for i in range(32)] for k in range(8)]
        forward = client.forward_backward([datum(t) for t in texts], "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=2e-3))
        forward.result()
        step.result()


def log_in(browser, key):
    browser.wait("return !document.getElementById('login').hidden")
    browser.run("document.getElementById('key').value = arguments[0];"
                "document.getElementById('login').requestSubmit()", key)


RUNS = "return [...document.querySelectorAll('.run')].map(e => Number(e.dataset.points))"
LINE = "const l = document.querySelector('.run polyline'); return l ? l.getAttribute('points').split(' ').length : 0"


def count(browser, table):
    return browser.run(f"return document.querySelectorAll('#{table} tr').length")


def sees_server(browser):
    return browser.run("return [...document.querySelectorAll('.server')].some(e => e.offsetHeight > 0)")


def check_page(browser, url, keys, client):
    browser.open(url + "/")
    log_in(browser, "tml-wrong")
    browser.wait("return document.getElementById('refused').textContent !== ''")
    log_in(browser, keys["alice"])
    browser.wait("return !document.getElementById('main').hidden")
    assert browser.run("return document.getElementById('login').offsetHeight") == 0
    train(client, 5)
    browser.wait(RUNS + ".some(n => n >= 5)")
    first, line = browser.run(RUNS), browser.run(LINE)
    train(client, 30)
    browser.wait(RUNS + ".some(n => n >= 35)")
    grown, grown_line = browser.run(RUNS), browser.run(LINE)
    assert first == [5] and line == 5 and grown == [35] and grown_line == 35, (first, line, grown, grown_line)
    for table in ("adapters", "models"):
        assert count(browser, table) >= 1, table
    assert browser.run("return document.querySelector('#models td').textContent") == "tiny"
    assert not sees_server(browser) and count(browser, "memory") == 0


def check_isolation(browser, keys, screenshot):
    """Another tenant sees nothing of it, an admin key everything, and what the server does as a whole."""
    browser.run("document.getElementById('forget').click()")
    log_in(browser, keys["bob"])
    browser.wait("return !document.getElementById('main').hidden")
    assert browser.run(RUNS) == [] and count(browser, "adapters") == 0 and not sees_server(browser)
    browser.run("document.getElementById('forget').click()")
    log_in(browser, keys["admin"])
    browser.wait(RUNS + ".length === 1")
    assert "all tenants" in browser.run("return document.getElementById('state').textContent")
    assert sees_server(browser) and count(browser, "memory") >= 1
    if screenshot:
        browser.screenshot(screenshot)


def check_text(browser):
    """Client text stays text, and the policy lets no other script run."""
    browser.run("""window.eval_ran = false;
        const s = document.createElement('script'); s.textContent = 'window.eval_ran = true'; document.body.append(s);
        document.querySelector('.run').replaceWith(runCard({id: arguments[0], base: arguments[0], rank: 1,
            tenant: arguments[0], started: '', live: true, steps: 0, curve: []}))""", HOSTILE)
    time.sleep(0.5)
    assert browser.run("return document.title") == "Strata"
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.run("return window.eval_ran") is False


def check_metrics(url):
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert values['strata_tokens_total{kind="train"}'] == 35 * 8 * 31, values
    assert values['strata_command_seconds_count{operation="optim_step",outcome="ok"}'] == 35
    assert values['strata_http_requests_total{route="/api/v1/optim_step",status="200"}'] == 35
    assert values["strata_batch_tokens"] == 8 * 31
    assert values['strata_memory_bytes{use="adapters"}'] > 0
    assert "alice" not in text and ":train:" not in text


def main():
    strata, model = sys.argv[1:3]
    keys = {name: subprocess.check_output([strata, "keygen"], text=True).strip() for name in ("alice", "bob", "admin")}
    with tempfile.TemporaryDirectory() as data:
        server, url, metrics = serve(strata, model, data, keys["alice"], keys["bob"], keys["admin"])
        browser = None
        try:
            browser = Browser()
            service = tinker.ServiceClient(base_url=url, api_key=keys["alice"])
            client = service.create_lora_training_client(base_model="tiny", rank=8, seed=1)
            check_page(browser, url, keys, client)
            check_metrics(metrics)
            check_isolation(browser, keys, sys.argv[3] if len(sys.argv) > 3 else None)
            check_text(browser)
        finally:
            if browser:
                browser.close()
            server.terminate()
            server.wait(60)
    print("page: the curve grew from 5 to 35 points; passed")


if __name__ == "__main__":
    main()
