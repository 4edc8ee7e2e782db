#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/speed.svg: tokens a second of Strata beside its fastest peer, each as a multiple of the peer.

usage: python3 tools/docs/make_speed_svg.py [--check]

The figures, the date and the machine are those of docs/peers.md, which `make peers` writes. --check exits with 1 when
docs/speed.svg is not what that page draws.
"""
import argparse
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = "| work | Strata | share of limit | best peer | its tokens/s | ratio |"
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 270, 60, 30, 64
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11px; fill: #57606a } .head { font-size: 15px; font-weight: 600 }
  .ours { fill: #2563eb } .peer { fill: #c3cad3 } .one { stroke: #57606a; stroke-dasharray: 3 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9da7b1 } .ours { fill: #58a6ff } .peer { fill: #3d444d } .one { stroke: #9da7b1 }
  }"""


def read_page(text):
    """The date, the machine and the rows of the page's first table."""
    _, found, rest = text.partition(HEAD)
    facts = dict(re.findall(r"^- (date|machine): (.*)$", rest, re.M))
    if not found or len(facts) != 2:
        sys.exit(f"docs/peers.md: no table with the head {HEAD} and lines `- date:` and `- machine:` after it")
    rows = []
    for line in rest.strip("\n").split("\n")[1:]:
        if not line.startswith("|"):
            break
        work, ours, _, peer, theirs, _ = (cell.strip() for cell in line.strip("|").split("|"))
        rows.append((work, float(ours), peer, float(theirs)))
    return facts["date"], facts["machine"], rows


def times(ratio):
    return f"{ratio:.1f}x" if ratio >= 1 else f"{ratio:.2f}x"


def draw(date, machine, rows):
    most = max(1.0, *(ours / theirs for _, ours, _, theirs in rows))
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
                f'<text x="{LEFT + ours / theirs * scale + 6:.1f}" y="{y + 11}">{times(ours / theirs)}</text>',
                f'<text class="small" x="{LEFT - 78}" y="{y + 13}">{html.escape(peer)}</text>']
    out += [f'<text class="small" x="10" y="{height - 14}">{html.escape(machine)}; {date}, docs/peers.md</text>', "</svg>"]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    picture = draw(*read_page((ROOT / "docs" / "peers.md").read_text()))
    path = ROOT / "docs" / "speed.svg"
    if not args.check:
        path.write_text(picture)
    elif not path.exists() or path.read_text() != picture:
        sys.exit("docs/speed.svg is not what docs/peers.md says: run tools/docs/make_speed_svg.py")


if __name__ == "__main__":
    main()
