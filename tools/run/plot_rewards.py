#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the reward of cookbook runs over their steps, a curve a run, and says where each began and ended.

usage: plot_rewards.py OUT.svg METRICS.jsonl ...     (a run's name is the folder of its file)
Fails when the mean of a run's last ten steps is not above that of its first ten.
"""
import json
import pathlib
import sys

KEY = "env/all/reward/total"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 48, 36, 24
COLOURS = ["#0b6e99", "#b04a00", "#4a7d2c", "#7a3e9d"]


def rewards(path):
    rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    return [row[KEY] for row in rows if KEY in row]


def smooth(values, width=5):
    return [sum(values[max(0, i - width + 1):i + 1]) / len(values[max(0, i - width + 1):i + 1])
            for i in range(len(values))]


def draw(runs):
    steps = max(len(v) for v in runs.values())
    low, high = min(min(v) for v in runs.values()), max(max(v) for v in runs.values())
    high = max(high, low + 0.01)
    x = lambda i: LEFT + i * (WIDTH - LEFT - 12) / max(1, steps - 1)
    y = lambda v: HEIGHT - BOTTOM - (v - low) * (HEIGHT - BOTTOM - TOP) / (high - low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for i in range(6):
        value = low + (high - low) * i / 5
        out.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - 12}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for i, (name, values) in enumerate(runs.items()):
        colour = COLOURS[i % len(COLOURS)]
        for series, width, opacity in ((values, 1, .35), (smooth(values), 2, 1)):
            points = " ".join(f"{x(j):.1f},{y(v):.1f}" for j, v in enumerate(series))
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" '
                       f'opacity="{opacity}"/>')
        out.append(f'<text x="{LEFT + 8}" y="{TOP + 4 + 16 * i}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
               f'step (reward of each, and the mean of five)</text></svg>')
    return "\n".join(out) + "\n"


def main():
    runs = {pathlib.Path(path).parent.name: rewards(path) for path in sys.argv[2:]}
    runs = {name: values for name, values in runs.items() if values}
    if not runs:
        return 0
    pathlib.Path(sys.argv[1]).write_text(draw(runs))
    failed = 0
    for name, values in runs.items():
        n = min(10, len(values) // 2)
        if n == 0:
            continue
        first, last = sum(values[:n]) / n, sum(values[-n:]) / n
        print(f"{name}: mean reward of the first {n} steps {first:.3f}, of the last {n} {last:.3f}")
        failed += not last > first
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
