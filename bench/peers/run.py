#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Strata with PEFT, vLLM and llama.cpp in turn, writes docs/peers.md, draws docs/speed.svg: `make peers`.

usage: python3 bench/peers/run.py [PROGRAM] [--only WORK ...] [--peers NAME ...] [--rounds N] [--continue] [--quick]
       python3 bench/peers/run.py --self-test

Each peer has an environment of its own, build/peers/NAME, which bench/peers/install.sh makes; one that is not there, or
that fails, is named with the reason and left out. A run of all works and peers writes the page; with --only, --peers or
--quick the figures are printed alone. Every pair is kept in build/peers/pairs.jsonl, from which --continue goes on.
Standard library only.
"""
import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import machine
from page import MOST_OTHERS, NAMES, Facts, Pair, Row, best_rows, kept_groups, page, peer_table, rounded
from peer import Peer, PeerError
from strata import Strata
from works import BY_NAME, WORKS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "peers"
PAIRS = BUILD / "pairs.jsonl"
MOST_TRIES = 3  # a round: pairs that do not count are measured again
PATIENCE, QUICK_PATIENCE = 1800, 180  # seconds for one answer of a peer; its start counts too
QUICK_WORKS = {"lora8", "decode1"}


def make_peer(name, args, model, gguf):
    if not (BUILD / name / "installed").exists():
        log = BUILD / f"{name}.install.log"
        said = log.read_text(errors="replace").strip() if log.exists() else ""
        raise PeerError(f"not installed: {said.splitlines()[-1] if said else 'run bench/peers/install.sh'}")
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(BUILD / "vllm_cache"),
                   "OMP_NUM_THREADS": str(args.threads), "PATH": f"{BUILD / name / 'bin'}:{os.environ['PATH']}"}
    patience = QUICK_PATIENCE if args.quick else PATIENCE
    return Peer(name, HERE / f"{name}_peer.py", BUILD / name / "bin" / "python", gguf if name == "llama_cpp" else model,
                args.threads, BUILD / f"{name}.log", args.quick, patience, environment)


def measure_pair(strata, peer, work, threads, peer_first):
    before = machine.probe(threads)
    found = {}
    for side in ("peer", "strata") if peer_first else ("strata", "peer"):
        one = strata if side == "strata" else peer
        with machine.Watch(one.seconds) as watch:
            found[side] = one.run(work)
        found[side + "_others"] = watch.others
    ours = found["strata"]
    return Pair(work.name, peer.name, ours["tokens_per_s"], found["peer"], ours["share_of_limit"],
                max(found["strata_others"], found["peer_others"]), min(before, machine.probe(threads)),
                ours["matrix_peak_gflops"], ours["read_gb_per_s"])


def describe_pair(pair):
    fate = "" if pair.counts else f"  LEFT OUT: others took {100 * pair.others:.1f} %"
    return (f"{pair.work:18} Strata {rounded(pair.ours):>6} tokens/s, {NAMES[pair.peer]} {rounded(pair.theirs):>6}, "
            f"{pair.ours / pair.theirs:.2f} times; others {100 * pair.others:.1f} %, probe {pair.probe:.2f} GB/s{fate}")


def measure_work(strata, peer, work, args, pairs):
    of_work = [pair for pair in pairs if (pair.work, pair.peer) == (work.name, peer.name)]
    wanted = args.rounds - sum(pair.counts for pair in of_work)
    tries = 1 if args.quick else MOST_TRIES * wanted
    if wanted > 0:
        peer.run(work)  # compiles, touches memory
    for i in range(tries):
        if wanted <= 0:
            return
        pair = measure_pair(strata, peer, work, args.threads, peer_first=i % 2 == 1)
        pairs.append(pair)
        if not args.quick:
            with open(PAIRS, "a") as file:
                file.write(json.dumps(dataclasses.asdict(pair)) + "\n")
        print(describe_pair(pair), flush=True)
        wanted -= pair.counts


def measure_peer(name, strata, works, args, files, pairs):
    """The peer's versions, and why works are missing."""
    faults = []
    print(f"---- {NAMES[name]}", flush=True)
    try:
        with make_peer(name, args, *files) as peer:
            print(f"{peer.versions}", flush=True)
            for work in works:
                try:
                    measure_work(strata, peer, work, args, pairs)
                except PeerError as error:
                    faults.append(f"{NAMES[name]}, {work.label}: {error}")
                    print(faults[-1], flush=True)
            return peer.versions, faults
    except (PeerError, BrokenPipeError) as error:
        print(f"{NAMES[name]} is left out: {error}", flush=True)
        return None, [*faults, f"{NAMES[name]}: {error}"]


def describe_limits(pairs):
    reads = sorted(pair.read_gb_per_s for pair in pairs)
    gflops = sorted(pair.gflops for pair in pairs)
    return (f"limits that Strata probed: {gflops[0]:,.0f} to {gflops[-1]:,.0f} GFLOP/s in bf16, "
            f"{reads[0]:.0f} to {reads[-1]:.0f} GB/s read")


def read_pairs(args, source):
    """Of a run that was stopped. `source`: machine and program, the first line of the file."""
    if args.resume and PAIRS.exists():
        first, *lines = PAIRS.read_text().splitlines()
        if first != source:
            sys.exit(f"--continue: {PAIRS} is of another machine or build: {first}")
        return [Pair(**json.loads(line)) for line in lines]
    if not args.quick:
        PAIRS.write_text(source + "\n")
    return []


def write_page(text):
    (ROOT / "docs" / "peers.md").write_text(text)
    subprocess.run([sys.executable, ROOT / "tools" / "docs" / "make_speed_svg.py"], check=True)
    print("written: docs/peers.md, docs/speed.svg", flush=True)


def measure(args):
    BUILD.mkdir(parents=True, exist_ok=True)
    strata = Strata(args.program, args.threads)
    version = strata.version()
    source = f"{machine.describe()}; {version}"
    print(source, flush=True)
    files = strata.write_model(BUILD)
    pairs, versions, faults = read_pairs(args, source), [], []
    wanted = args.only or (QUICK_WORKS if args.quick else BY_NAME)
    for name in args.peers or NAMES:
        works = [work for work in WORKS if name in work.peers and work.name in wanted]
        if works:
            found, missing = measure_peer(name, strata, works, args, files, pairs)
            versions += [found] if found else []
            faults += missing
    if args.quick:
        sys.exit("\n".join(faults) or None)
    rows = best_rows(kept_groups(pairs))
    if not rows:
        sys.exit(f"no pair counts: in each, others took above {100 * MOST_OTHERS:.0f} %, or a peer failed")
    print(peer_table(pairs))
    facts = Facts(datetime.date.today().isoformat(), machine.describe(), version, versions, "`make peers`",
                  [describe_limits(pairs), *(f"left out: {fault}" for fault in faults)])
    if args.only or args.peers:
        print("docs/peers.md is left as it is: not all works and peers were asked for")
    else:
        write_page(page(facts, rows, pairs))


# A peer that decodes at 7 tokens a second, cannot train, and prints what is no answer.
ECHO = """from peer import serve
class Echo:
    versions = "Echo 1"
    def __init__(self, *_):
        print("noise")
    def run(self, work):
        if work.kind == "train":
            raise ValueError("no")
        return 7.0
serve(Echo)
"""


def self_test():
    """What needs no peer: what is kept, medians, the page, and that the picture is drawn from it."""
    def pair(work, peer, ours, theirs, others=0.0):
        return Pair(work, peer, ours, theirs, 0.5, others, 1.0, 100.0, 20.0)
    pairs = [pair("decode1", "vllm", 50, 25), pair("decode1", "vllm", 52, 26, MOST_OTHERS),
             pair("decode1", "vllm", 54, 1000, 0.05), pair("decode1", "llama_cpp", 60, 40),
             pair("train_s512", "peft", 300, 120), pair("lora8", "peft", 9, 3, 0.5)]
    groups = kept_groups(pairs)
    assert {key: len(group) for key, group in groups.items()} == {
        ("train_s512", "peft"): 1, ("decode1", "vllm"): 2, ("decode1", "llama_cpp"): 1}
    rows = best_rows(groups)
    assert rows == [Row("train 4 x 512", 300, 0.5, "PEFT", 120), Row("decode 1", 60, 0.5, "llama.cpp", 40)], rows
    assert machine.others_share(busy=3.0, ours=2.0, seconds=10.0, cores=2) == 0.05
    assert machine.others_share(busy=1.9, ours=2.0, seconds=10.0, cores=2) == 0.0
    assert machine.busy_seconds("cpu  1 2 3 400 500 4 5 6 7 8\ncpu0") * machine.TICKS_PER_S == 1 + 2 + 3 + 4 + 5 + 6
    facts = Facts("2026-01-02", "2 cores of a <kind> (fast)", "strata 0", ["PEFT 1"], "`make peers`", ["a note"])
    text = page(facts, rows, pairs)
    assert "| train 4 x 512 | 300 | 50 % | PEFT | 120 | 2.50 |" in text, text
    assert "| decode1 | vLLM | 2 of 3 | 51.0 | 25.5 | 2.00 to 2.00 | 4.0 % | 100 % |" in text, text
    spec = importlib.util.spec_from_file_location("make_speed_svg", ROOT / "tools" / "docs" / "make_speed_svg.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    read = picture.read_page(text)
    assert read == ("2026-01-02", "2 cores of a <kind> (fast)",
                    [("train 4 x 512", 300.0, "PEFT", 120.0), ("decode 1", 60.0, "llama.cpp", 40.0)]), read
    assert "2.5x" in picture.draw(*read)
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "peer_process.py")
        script.write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{ECHO}")
        with Peer("p", script, sys.executable, "model", 1, f"{folder}/log", False, 60, {}) as peer:
            assert peer.versions == "Echo 1" and peer.run(BY_NAME["decode1"]) == 7.0 and peer.seconds() >= 0
            try:
                peer.run(BY_NAME["train_s512"])
                raise AssertionError("a peer's fault is no answer")
            except PeerError as error:
                assert str(error) == "ValueError: no"
    print("peers: self test passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default=str(ROOT / "build" / "release" / "strata"))
    parser.add_argument("--only", nargs="+", choices=list(BY_NAME), metavar="WORK", help=", ".join(BY_NAME))
    parser.add_argument("--peers", nargs="+", choices=list(NAMES), metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--rounds", type=int, default=5, help="pairs that count, of each work and peer (5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of Strata and of each peer (all cores)")
    parser.add_argument("--continue", dest="resume", action="store_true",
                        help="go on with the pairs of a run that was stopped")
    parser.add_argument("--quick", action="store_true",
                        help="one pair of decode1 or lora8 with each peer, vLLM not compiled: does it run at all?")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that a peer ends with it
    if args.quick:
        args.rounds = 1
    measure(args)


if __name__ == "__main__":
    main()
