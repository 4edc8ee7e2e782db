# SPDX-License-Identifier: Apache-2.0
"""The live page in headless Chromium: a run started by the SDK, its curve seen to grow, its checkpoint downloaded, models
asked in its playground; on wide and narrow screens, light and dark, with the contrast of every text measured.

usage: page.py STRATA MODEL_DIR [PICTURES]     (needs chromium and chromium-driver)

PICTURES: a folder for page.png, and page-narrow.png, page-dark.png and page-narrow-dark.png (not in docs) with it, and playground.png.
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
from page_play import check_playground  # noqa: E402
from tinker import types  # noqa: E402

NAME = "first try"
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

    def devtools(self, command, **parameters):
        return self.call("POST", self.session + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show_as(self, width, scheme):
        """As on a screen so wide, for a user who prefers light or dark."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=1250, deviceScaleFactor=1, mobile=False)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        time.sleep(0.3)

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


def texts_of(step):
    return [[(7 * i * i + 3 * i + step % 4 + k) % 90 + 5 for i in range(32)] for k in range(8)]


def train(client, steps):
    for step in range(steps):
        texts = texts_of(step)
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


def text_of(browser, place):
    return browser.run("return document.querySelector(arguments[0])?.textContent ?? ''", place)


def check_runs(browser, client):
    """A run has its client's name, its evaluations a curve, and chosen runs share a chart with a log axis."""
    assert text_of(browser, ".run .name") == NAME, text_of(browser, ".run .name")
    client.forward([datum(t) for t in texts_of(5)], "cross_entropy").result()
    browser.wait("return document.querySelector('.run').dataset.evaluations === '1'")
    assert "evaluation loss" in text_of(browser, ".run")
    browser.run("document.querySelector('.run input').click()")
    browser.wait("return document.querySelectorAll('#curves polyline').length === 2")
    assert NAME in text_of(browser, "#legend")
    assert "log axis" not in text_of(browser, "#curves")
    browser.run("document.getElementById('log').click()")
    assert "log axis" in text_of(browser, "#curves")


def check_checkpoints(browser, client):
    """What was saved is listed with its path, size and age, and one click away."""
    path = client.save_state("first").result().path
    browser.run("refreshSaved()")
    browser.wait("return document.querySelectorAll('#saved tbody tr').length === 1")
    row = text_of(browser, "#saved tbody tr")
    assert path in row and "iB" in row and " ago" in row, row
    browser.devtools("Browser.setDownloadBehavior", behavior="deny")
    browser.run("window.seen = []; const real = fetch; window.fetch = (...a) => { seen.push(a[0]); return real(...a); };"
                "document.querySelector('#saved button').click()")
    browser.wait("return seen.some(u => String(u).endsWith('/archive'))"
                 " && document.querySelector('#saved button').textContent === 'download'")
    assert browser.run("return document.querySelector('#saved button').title") == ""


# Contrast of every text with what it stands on, as WCAG 2 has it; nothing may be below 4.5, or wider than the screen.
CONTRAST = """
const numbers = (c) => (c.match(/[0-9.]+/g) || []).map(Number);
const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
                       return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const below = (e) => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor);
                                                        if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
const bad = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || ['SCRIPT', 'STYLE'].includes(e.tagName)) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(numbers(e instanceof SVGElement ? style.fill : style.color)), light(below(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.push(e.tagName + ' ' + e.textContent.slice(0, 30) + ' ' + ratio.toFixed(2));
}
return bad;"""
# Headings of tables that stand on more than one line.
BROKEN = """
const lines = (e) => { const r = document.createRange(); r.selectNodeContents(e);
                       return new Set([...r.getClientRects()].map((b) => Math.round(b.top))).size; };
return [...document.querySelectorAll('th')].filter((e) => e.getClientRects().length && lines(e) > 1).map((e) => e.textContent)"""


def check_looks(browser, pictures):
    for name, width, scheme in (("page-narrow-dark", 400, "dark"), ("page-narrow", 400, "light"), ("page-dark", 1280, "dark"),
                                ("page", 1280, "light")):
        browser.show_as(width, scheme)
        assert browser.run(CONTRAST) == [], (name, browser.run(CONTRAST))
        assert browser.run(BROKEN) == [], (name, browser.run(BROKEN))
        assert browser.run("return document.documentElement.scrollWidth") <= width, name
        size = browser.run("const t = document.querySelector('.run .chart text'); return t.getBoundingClientRect().height")
        assert size >= 10, (name, size)
        if pictures and (name != "page-narrow-dark" or os.path.basename(os.path.normpath(pictures)) != "docs"):
            browser.screenshot(os.path.join(pictures, name + ".png"))


def check_isolation(browser, keys):
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
    check_looks(browser, None)
    asked = [m for m in browser.messages() if "favicon" in m]
    assert asked == [], asked


def check_text(browser):
    """Client text stays text, and the policy lets no other script run."""
    browser.run("""window.eval_ran = false;
        const s = document.createElement('script'); s.textContent = 'window.eval_ran = true'; document.body.append(s);
        document.querySelector('.run').replaceWith(runCard({id: arguments[0], base: arguments[0], rank: 1,
            tenant: arguments[0], name: arguments[0], started: 0, live: true, steps: 0, curve: [],
            evaluations: []}))""", HOSTILE)
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
            client = service.create_lora_training_client(base_model="tiny", rank=8, seed=1, user_metadata={"name": NAME})
            check_page(browser, url, keys, client)
            check_metrics(metrics)
            check_runs(browser, client)
            check_checkpoints(browser, client)
            pictures = sys.argv[3] if len(sys.argv) > 3 else None
            check_playground(browser, pictures)
            check_looks(browser, pictures)
            check_isolation(browser, keys)
            check_text(browser)
        finally:
            if browser:
                browser.close()
            server.terminate()
            server.wait(60)
    print("page: the curve grew from 5 to 35 points; passed")


if __name__ == "__main__":
    main()
