# SPDX-License-Identifier: Apache-2.0
"""Says of each of the 134 items of the acceptance list where it was shown; fails when one was shown nowhere.

usage: count.py ITEMS_FILE     (lines of "number test", which the other scripts wrote as they passed)
"""
import collections
import pathlib
import sys

# Shown by tests that tools/run/e2e.sh does not run: those of the fast suite, by name, and the cookbook's recipes.
ELSEWHERE = {
    64: "tests/ops/adamw_test.cc AdamW.MatchesReference",
    97: "tools/run/cookbook.sh download: merged by the cookbook, and as a PEFT adapter; state_items.py where torch is",
    102: "tests/server/http/server_test.cc HttpServerTest.BoundsBodies",
    104: "tests/server/http/server_test.cc HttpServerTest.ParksManyPolls",
    106: "tests/server/http/server_test.cc HttpServerTest.SlowPeersBlockNobody",
    134: "tools/run/cookbook.sh download",
}
# Needs more than one SDK (SDKS of `make e2e`).
OTHER_SDKS = {132: "sdk_tour.py with an SDK older than 0.38.0"}
# Refused or left out by the server's own choice, as the list permits.
CHOICES = {
    113: "copy_weights is supported", 116: "inflight is refused by name", 118: "topk_sample_logprobs is supported",
    119: "target_prompt_logprobs is supported", 120: "prompt_alt_tokens_k is supported",
    123: "retrieve_futures and join_sampling_session are not advertised",
    129: "auth/apikey/me answers 404", 130: "service-only endpoints answer 404 or 405",
}


def main():
    shown = collections.defaultdict(list)
    for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
        number, test = line.split(" ", 1)
        shown[int(number)].append(test)
    here = {n for n in range(1, 135) if n in shown}
    elsewhere = {n: t for n, t in (ELSEWHERE | OTHER_SDKS).items() if n not in here}
    missing = sorted(set(range(1, 135)) - here - set(elsewhere))
    print(f"134 items: {len(here)} passed in this run, {len(elsewhere)} by named tests elsewhere, {len(missing)} nowhere")
    for number, test in sorted(elsewhere.items()):
        print(f"  {number}: {test}")
    for number, choice in CHOICES.items():
        print(f"  {number}: by choice: {choice}")
    if missing:
        print(f"  shown nowhere: {missing}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
