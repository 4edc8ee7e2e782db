# SPDX-License-Identifier: Apache-2.0
"""Runs every command of the README and of the pages for users, each page in a fresh folder that has the repository's
`models` and `examples`. What a command needs from a network is a stand-in.

usage: documents.py STRATA [PAGE.md ...]

Of each fenced block without a language the lines that begin with `strata` are run by bash in order, with `\\` at a line's end
going on; a line is a fault when it fails. `strata serve` runs until it listens, beside what follows in the page, and must then
end cleanly at SIGTERM. Blocks of `python` run with the interpreter that runs this, as soon as a server of the page listens,
with its key in place of "tml-...". A block behind `<!-- not run: WHY -->` is left out, and counted.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import tiny_gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/tour.md", "docs/train.md", "docs/data.md", "docs/eval.md", "docs/chat.md", "docs/templates.md",
         "docs/serve.md", "docs/serve-team.md", "docs/serve-operator.md", "docs/rewards.md", "docs/qlora.md", "docs/upgrade.md",
         "docs/openai.md", "docs/memory.md", "docs/stages.md", "docs/models.md", "docs/gguf.md", "docs/convert.md",
         "docs/transformers.md", "docs/timeline.md", "docs/hardening.md"]
BLOCK = re.compile(r"(<!-- not run: (?P<why>[^>]*) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
# As much of Hugging Face's program as `strata pull` calls: puts the bundled model where the cache has models.
HF = """#!/bin/sh
set -e
[ "$1" = download ] || exit 2
cache="${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}/models--$(echo "$2" | sed 's,/,--,')"
mkdir -p "$cache/snapshots/0123456789" "$cache/refs"
cp -r "MODEL"/. "$cache/snapshots/0123456789/"
printf 0123456789 > "$cache/refs/main"
echo "$cache/snapshots/0123456789"
"""


class Page:
    def __init__(self, strata, path, folder):
        self.path, self.folder, self.servers, self.counts = path, folder, [], {"run": 0, "left out": 0}
        tools = folder / "bin"
        tools.mkdir()
        (tools / "strata").symlink_to(pathlib.Path(strata).resolve())
        (tools / "hf").write_text(HF.replace("MODEL", str(ROOT / "models" / "tiny-qwen3")))
        (tools / "hf").chmod(0o755)
        (folder / "home").mkdir()
        for name in ("models", "examples"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "DIR").symlink_to(ROOT / "models" / "tiny-qwen3")  # a page's "any model"
        tiny_gguf.write(ROOT / "models" / "tiny-qwen3", folder / "SmolLM2-135M-Instruct.Q4_1.gguf")  # for a download
        (folder / "chats.jsonl").symlink_to(ROOT / "examples" / "answers.jsonl")
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder / "home")}
        for name in ("HF_HOME", "HF_HUB_CACHE", "STRATA_KEYS", "STRATA_ADMIN_KEYS", "XDG_STATE_HOME"):
            self.environment.pop(name, None)

    def fail(self, command, output):
        raise AssertionError(f"{self.path}: {command}\n{output[-3000:]}")

    def run(self):
        text = (ROOT / self.path).read_text()
        try:
            for block in BLOCK.finditer(text):
                if block["why"]:
                    self.counts["left out"] += 1
                elif block["language"] == "python":
                    self.run_python(block["text"])
                elif not block["language"]:
                    for line in block["text"].replace("\\\n", " ").split("\n"):
                        if line.startswith("strata "):
                            self.run_line(re.sub(r"\s+#.*$", "", line))
        finally:
            for command, process, log in self.servers:
                self.stop(command, process, log)

    def run_line(self, line):
        self.counts["run"] += 1
        if line.startswith("strata serve "):
            return self.serve(line)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=self.folder, env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        if done.returncode != 0:
            self.fail(line, done.stdout)

    def serve(self, line):
        log = self.folder / f"serve-{len(self.servers)}.log"
        with open(log, "w") as out:
            process = subprocess.Popen(["bash", "-c", "exec " + line], cwd=self.folder, env=self.environment,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self.servers.append((line, process, log))
        end = time.monotonic() + 60
        while "listening" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                self.fail(line, log.read_text())
            time.sleep(0.1)

    def stop(self, command, process, log):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            code = "none: it had to be killed"
        if code != 0 and sys.exc_info()[0] is None:
            self.fail(f"{command}: exit code {code}", log.read_text())

    def run_python(self, text):
        self.counts["run"] += 1
        keys = self.folder / "keys"
        key = keys.read_text().split()[0] if keys.exists() else "tml-any"
        # A page shows nothing that the SDK calls deprecated.
        done = subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", text.replace("tml-...", key)],
                              cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        if done.returncode != 0:
            self.fail(text, done.stdout)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    strata, pages = sys.argv[1], sys.argv[2:] or [p for p in PAGES if (ROOT / p).exists()]
    total = 0
    for path in pages:
        with tempfile.TemporaryDirectory() as folder:
            page = Page(strata, path, pathlib.Path(folder))
            begin = time.monotonic()
            page.run()
            total += page.counts["run"]
            print(f"documents: {path}: {page.counts['run']} run, {page.counts['left out']} left out, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)
    assert total >= (1 if sys.argv[2:] else 10), total
    print(f"documents: {total} commands ran; passed")


if __name__ == "__main__":
    main()
