#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/terminal.svg: what a terminal shows of training the bundled model and asking it, from a real run.

usage: python3 tools/docs/make_terminal_svg.py STRATA

Runs in a fresh folder, on a terminal of 100 columns. Of the training it keeps the last state of the bar and the summary.
"""
import html
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = ["strata train models/tiny-qwen3 --data examples/answers.jsonl --out adapter",
            'strata chat models/tiny-qwen3 --adapter adapter --prompt "What is 7 plus 5?"']
COLUMNS, CHAR, LINE, PAD, TOP = 100, 7.83, 18, 18, 44
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def run(command, folder, program):
    """What the terminal shows at the end: a line that was drawn over counts by its last state."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "NO_COLOR": "1",
                   "PATH": f"{pathlib.Path(program).resolve().parent}:{os.environ['PATH']}"}
    subprocess.run(["stty", "cols", str(COLUMNS), "rows", "50"], stdin=follower, check=True)
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=follower,
                               stderr=follower)
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    if process.wait() != 0:
        sys.exit(f"{command}: exit code {process.returncode}\n{seen.decode(errors='replace')}")
    lines = []
    for line in CONTROL.sub("", seen.decode()).replace("\r\n", "\n").split("\n"):
        shown = [part for part in line.split("\r") if part.strip()]
        lines.append(shown[-1].rstrip() if shown else "")
    return lines


def shortened(lines, most=16):
    lines = [line for line in lines if line.strip()]
    return lines if len(lines) <= most else lines[:most - 8] + ["  ..."] + lines[-7:]


def wrapped(line):
    """As a terminal does it: at the right edge, wherever that is."""
    return [line[at:at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]


def draw(screens):
    rows = []
    for command, lines in screens:
        rows += [("prompt", command)] + [("", row) for line in lines for row in wrapped(line)] + [("", "")]
    height = TOP + LINE * len(rows) + PAD
    width = int(COLUMNS * CHAR + 2 * PAD)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="a terminal">',
           "<style>text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6deeb;white-space:pre}"
           ".p{fill:#7ee787}.c{fill:#ffffff;font-weight:600}</style>",
           f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>']
    for x, colour in ((20, "#ff5f57"), (38, "#febc2e"), (56, "#28c840")):
        out.append(f'<circle cx="{x}" cy="20" r="5.5" fill="{colour}"/>')
    for index, (kind, line) in enumerate(rows):
        y = TOP + LINE * index + 13
        if kind == "prompt":
            out.append(f'<text x="{PAD}" y="{y}" xml:space="preserve"><tspan class="p">$ </tspan><tspan class="c">{html.escape(line)}</tspan></text>')
        elif line:
            out.append(f'<text x="{PAD}" y="{y}" xml:space="preserve">{html.escape(line)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("models", "examples"):
            os.symlink(ROOT / name, os.path.join(folder, name))
        screens = [(command, shortened(run(command, folder, sys.argv[1]))) for command in COMMANDS]
    (ROOT / "docs" / "terminal.svg").write_text(draw(screens))


if __name__ == "__main__":
    main()
