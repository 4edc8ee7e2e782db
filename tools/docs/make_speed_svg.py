#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/speed.svg: tokens a second of Strata beside its fastest peer, each as a multiple of the peer.

usage: python3 tools/docs/make_speed_svg.py [--check]

The figures are those of the newest table in docs/log.md with the columns work, Strata, best peer and its tokens/s; its
heading gives the date. --check exits with 1 when docs/speed.svg is not what that table draws.
"""
import argparse
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = "| work | Strata | share of limit | best peer | its tokens/s |"
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 270, 60, 30, 64
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11px; fill: #57606a } .head { font-size: 15px; font-weight: 600 }
  .ours { fill: #2563eb } .peer { fill: #c3cad3 } .one { stroke: #57606a; stroke-dasharray: 3 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9da7b1 } .ours { fill: #58a6ff } .peer { fill: #3d444d } .one { stroke: #9da7b1 }
  }"""


def read_table(log):
    before, found, rest = log.partition(HEAD)
    if not found:
        sys.exit(f"docs/log.md: no table with the head {HEAD}")
    title = re.findall(r"^## (\S+): (.*)$", before, re.M)[-1]
    machine = [line for line in before.rsplit("\n## ", 1)[1].split("\n")[1:] if line][0]
    rows = []
    for line in rest.strip("\n").split("\n")[1:]:
        if not line.startswith("|"):
            break
        work, ours, _, peer, theirs = (cell.strip() for cell in line.strip("|").split("|"))
        rows.append((work, float(ours), peer, float(theirs)))
    return title[0], machine.split(", bf16")[0], rows


def draw(date, machine, rows):
    most = max(ours / theirs for _, ours, _, theirs in rows)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(rows) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
           '  aria-label="Tokens a second of Strata beside its fastest peer">', f"<style>{STYLE}\n</style>",
           f'<text class="head" x="10" y="24">Qwen3-0.6B in bf16 beside the fastest peer, {html.escape(machine.partition(" (")[0])}</text>',
           '<text class="small" x="10" y="44">blue: Strata; grey: the fastest peer, which is named; the number: how many times as fast</text>']
    for i, (work, ours, peer, theirs) in enumerate(rows):
        y = TOP + ROW * i
        out += [f'<text x="10" y="{y + 13}">{html.escape(work)}</text>',
                f'<rect class="ours" x="{LEFT}" y="{y}" width="{ours / theirs * scale:.1f}" height="11"/>',
                f'<rect class="peer" x="{LEFT}" y="{y + 11}" width="{scale:.1f}" height="9"/>',
                f'<text x="{LEFT + ours / theirs * scale + 6:.1f}" y="{y + 11}">{ours / theirs:.1f}x</text>',
                f'<text class="small" x="{LEFT - 78}" y="{y + 13}">{html.escape(peer)}</text>']
    out += [f'<text class="small" x="10" y="{height - 14}">{html.escape(machine)}; {date}, docs/log.md</text>', "</svg>"]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    picture = draw(*read_table((ROOT / "docs" / "log.md").read_text()))
    path = ROOT / "docs" / "speed.svg"
    if not args.check:
        path.write_text(picture)
    elif not path.exists() or path.read_text() != picture:
        sys.exit("docs/speed.svg is not what docs/log.md says: run tools/docs/make_speed_svg.py")


if __name__ == "__main__":
    main()
