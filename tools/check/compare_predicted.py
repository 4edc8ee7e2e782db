#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured speed of the works of `strata bench`: medians of runs before and behind which probed limits predict times
that are at most 5 % apart; others are repeated.

usage: python tools/check/compare_predicted.py --strata BIN [--runs 3] [--tries 9] [WORK[=MODEL] ...]

Without works: seven that train and five of prefill and decoding. WORK=MODEL runs on that model directory.
Prints a row a work, and whether its median is within 8 % of what was predicted.
"""
import argparse
import json
import statistics
import subprocess
import sys

WORKS = ("train_s512 train_s512_remat train_s2048_remat train_s8192_remat moe_train_s512 gdn_train_s2048 dsv4_train_s2048 "
         "prefill512 prefill2048 decode1 decode8 decode32").split()
WITHIN, MOST_DRIFT = 0.08, 0.05


def runs_of(strata, work, count):
    name, _, model = work.partition("=")
    command = [strata, "bench", name, "--repeat", str(count), "--json", *(["--model", model] if model else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)["runs"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strata", required=True)
    parser.add_argument("--runs", type=int, default=3, help="that count, of each work")
    parser.add_argument("--tries", type=int, default=9, help="runs of a work at most")
    parser.add_argument("works", nargs="*", default=WORKS)
    args = parser.parse_args()
    missed = []
    for work in args.works:
        ratios, speeds, tries = [], [], 0
        while len(ratios) < args.runs and tries < args.tries:
            count = min(args.runs - len(ratios), args.tries - tries)
            tries += count
            for run in runs_of(args.strata, work, count):
                if "predicted_drift" not in run:
                    sys.exit(f"{work}: decoding with weights in few bits is not predicted")
                if run["predicted_drift"] <= MOST_DRIFT:
                    speeds.append(run["tokens_per_s"])
                    ratios.append(run["tokens_per_s"] / run["predicted_tokens_per_s"])
        if not ratios:
            print(f"{work}: no run of {tries} had limits that stood still", flush=True)
            missed.append(work)
            continue
        ratio = statistics.median(ratios)
        if abs(ratio - 1) > WITHIN:
            missed.append(work)
        print(f"{work}: {statistics.median(speeds):.2f} tokens/s, {ratio:.3f} of what was predicted ({min(ratios):.3f} to {max(ratios):.3f}; "
              f"{len(ratios)} of {tries} runs)", flush=True)
    if missed:
        sys.exit(f"not within {WITHIN:.0%}: {', '.join(missed)}")


if __name__ == "__main__":
    main()
