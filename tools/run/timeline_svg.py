#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the last step of a pipeline's timeline (strata train or bench --stages S --trace TRACE.json) as a small picture.

usage: timeline_svg.py TRACE.json OUT.svg
A row is a rank; light bars are forwards, dark ones backwards, each with its micro-batch and, where a rank has several
stages, the stage (F0 s2); what is empty is a wait.
"""
import collections
import json
import sys

WIDTH, LEFT, ROW, BAR = 900, 60, 44, 30
COLOURS = {"F": ("#9ecae1", "#08306b"), "B": ("#3182bd", "#ffffff"), "optimizer step": ("#74c476", "#00441b")}


def stages_of(actions, rank, num_ranks):
    """The stage of each action of a rank, in order of time: its forwards of a micro-batch go up through its stages, its
    backwards down."""
    seen = collections.Counter()
    keys = [(e["name"], e["args"]["micro-batch"]) for e in actions]
    chunks = max(collections.Counter(keys).values(), default=1)
    stages = []
    for name, number in keys:
        turn = seen[name, number]
        seen[name, number] += 1
        stages.append(rank + num_ranks * (turn if name == "F" else chunks - 1 - turn))
    return stages if chunks > 1 else [None] * len(stages)


def main(trace, out):
    with open(trace, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    rows = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"].startswith("rank ")}
    spans = [e for e in events if e["ph"] == "X"]
    first = rows["rank 0"]
    steps = [e for e in spans if e["tid"] == first and e["name"] in ("step", "measure")]
    begin, end = steps[-1]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    scale = (WIDTH - LEFT - 10) / (end - begin)
    height = ROW * len(rows) + 34
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for index, (name, tid) in enumerate(sorted(rows.items(), key=lambda row: int(row[0].split()[1]))):
        y = 8 + ROW * index
        svg.append(f'<text x="4" y="{y + 20}" fill="#333333">{name}</text>')
        svg.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 10}" height="{BAR}" fill="#f2f2f2"/>')
        inside = [e for e in spans if e["tid"] == tid and e["ts"] >= begin and e["ts"] + e["dur"] <= end + 1]
        waits = [e for e in inside if e["name"] in ("receive", "gather")]
        shown = sorted((e for e in inside if e["name"] in COLOURS), key=lambda e: e["ts"])
        actions = [e for e in shown if "micro-batch" in e.get("args", {})]
        stages = {id(e): s for e, s in zip(actions, stages_of(actions, int(name.split()[1]), len(rows)))}
        for e in shown:
            # A wait stands before what needs the thing waited for; a step waits for the norm of all stages.
            start = max([e["ts"]] + [w["ts"] + w["dur"] for w in waits if e["ts"] <= w["ts"] <= e["ts"] + e["dur"]])
            x, width = LEFT + (start - begin) * scale, (e["ts"] + e["dur"] - start) * scale
            fill, ink = COLOURS[e["name"]]
            svg.append(f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{BAR}" fill="{fill}" stroke="#ffffff" stroke-width="0.5"/>')
            number = e.get("args", {}).get("micro-batch")
            stage = stages.get(id(e))
            text = e["name"] + str(number) + ("" if stage is None else f" s{stage}")
            if number is not None and width > 7 * len(text):
                svg.append(f'<text x="{x + width / 2:.1f}" y="{y + 20}" fill="{ink}" text-anchor="middle">{text}</text>')
            elif number is not None:  # too thin for its name, which shows on pointing
                svg[-1] = svg[-1].replace("/>", f"><title>{text}</title></rect>")
    svg.append(f'<text x="{LEFT}" y="{height - 8}" fill="#333333">one optimizer step, {(end - begin) / 1000:.0f} ms</text>')
    svg.append("</svg>")
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
