# SPDX-License-Identifier: Apache-2.0
"""Pairs of runs, what is kept of them, and docs/peers.md. tools/docs/make_speed_svg.py reads its lines `- date:` and
`- machine:` and its first table."""
import collections
import dataclasses
import statistics
import textwrap

from works import WORKS

MOST_OTHERS = 0.04  # of the machine, which others may take in a pair that counts
HEAD = ("work", "Strata", "share of limit", "best peer", "its tokens/s", "ratio")
NAMES = {"peft": "PEFT", "vllm": "vLLM", "llama_cpp": "llama.cpp"}


@dataclasses.dataclass
class Pair:
    work: str
    peer: str
    ours: float  # tokens a second
    theirs: float
    share: float  # of the limit, Strata's
    others: float  # the larger share of the machine that others took in either run
    probe: float  # GB/s, the smaller of those before and after
    gflops: float  # what Strata probed
    read_gb_per_s: float

    @property
    def counts(self):
        return self.others <= MOST_OTHERS


@dataclasses.dataclass
class Row:
    """Of the first table: one work and the peer that is fastest at it."""
    label: str
    ours: float
    share: float
    peer: str
    theirs: float


@dataclasses.dataclass
class Facts:
    """What the page names besides figures, each a line."""
    date: str
    machine: str
    strata: str
    peers: list
    command: str
    notes: list = dataclasses.field(default_factory=list)


def rounded(rate):
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def ratio(ours, theirs):
    """Of the figures as they are shown."""
    return f"{float(rounded(ours)) / float(rounded(theirs)):.2f}"


def kept_groups(pairs):
    """{(work, peer): pairs that count}, in the order of the works."""
    groups = collections.OrderedDict(((work.name, peer), []) for work in WORKS for peer in work.peers)
    for pair in pairs:
        if pair.counts:
            groups[pair.work, pair.peer].append(pair)
    return {key: group for key, group in groups.items() if group}


def median(pairs, field):
    return statistics.median(getattr(pair, field) for pair in pairs)


def best_rows(groups):
    """A row a work: medians of the pairs with its fastest peer."""
    rows = []
    for work in WORKS:
        of_work = [group for (name, _), group in groups.items() if name == work.name]
        if of_work:
            best = max(of_work, key=lambda group: median(group, "theirs"))
            rows.append(Row(work.label, median(best, "ours"), median(best, "share"), NAMES[best[0].peer],
                            median(best, "theirs")))
    return rows


def table(head, rows):
    first, *others = ("| " + " | ".join(line) + " |" for line in [head, *rows])
    return "\n".join([first, "|" + "---|" * len(head), *others])


def peer_table(pairs):
    """Every peer's figure, the spread of its pairs' ratios, and what the machine did meanwhile."""
    best_probe = max(pair.probe for pair in pairs)
    tried = collections.Counter((pair.work, pair.peer) for pair in pairs)
    rows = []
    for (work, peer), group in kept_groups(pairs).items():
        ratios = sorted(pair.ours / pair.theirs for pair in group)
        rows.append([work, NAMES[peer], f"{len(group)} of {tried[work, peer]}", rounded(median(group, "ours")),
                     rounded(median(group, "theirs")), f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                     f"{100 * max(pair.others for pair in group):.1f} %",
                     f"{100 * min(pair.probe for pair in group) / best_probe:.0f} %"])
    head = ["work", "peer", "pairs kept", "Strata", "peer's tokens/s", "ratios", "most by others", "slowest probe"]
    return table(head, rows)


INTRODUCTION = """\
# Strata with PEFT, vLLM and llama.cpp

Tokens a second on one machine: Qwen3-0.6B's shape with random weights, bf16, each work with the peer that is
fastest at it. `make peers` measures the machine at hand, writes this page (`bench/peers/`) and draws the picture.

![tokens per second of Strata and its fastest peer](speed.svg)"""
HOW = """\
## How it is measured

- Works are those of `strata bench`: training steps (forward, backward, AdamW) of an adapter of rank 32 on every
  projection, prompts, and 32 steps of decoding after prompts of 128 tokens, all in bf16 on as many threads as cores.
- PEFT has the model and the adapter in bf16, fused attention, a fused AdamW, cross-entropy in chunks with its gradient
  by hand, and gradient checkpointing where Strata recomputes. vLLM has compiled graphs and no cache of prefixes.
  llama.cpp reads a bf16 GGUF file and samples nothing, as in its own llama-bench.
- Strata and a peer run in turn, pair after pair, each first in every second pair; both have run once untimed. A figure
  is the median of the pairs that count.
- A pair in which other processes and the host took more than 4 % of the machine during either run does not count, by
  `/proc/stat`. A short probe (hashing on all threads) before and after each pair shows what that does not: the clock.
- The limit that a share is of is probed by `strata bench` itself, before and after each timed run.
"""


def fact_lines(facts):
    lines = [f"date: {facts.date}", f"machine: {facts.machine}", f"Strata: {facts.strata}",
             *(f"peer: {peer}" for peer in facts.peers), f"command: {facts.command}", *facts.notes]
    return "\n".join(textwrap.fill(line, 118, initial_indent="- ", subsequent_indent="  ") for line in lines)


def page(facts, rows, pairs=()):
    cells = [[row.label, rounded(row.ours), f"{100 * row.share:.0f} %", row.peer, rounded(row.theirs),
              ratio(row.ours, row.theirs)] for row in rows]
    parts = [INTRODUCTION, table(HEAD, cells), fact_lines(facts)]
    if pairs:
        parts.append("## Every peer\n\n" + peer_table(pairs))
    return "\n\n".join([*parts, HOW])
