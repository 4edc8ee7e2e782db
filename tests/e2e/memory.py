# SPDX-License-Identifier: Apache-2.0
"""Memory of a server beside its plan while eight tenants train and then sample, all at once.

usage: memory.py STRATA MODEL_DIR [MEMORY, 2GiB] [RANK, 32] [TOKENS, 512]
Each tenant has an adapter with its optimizer state, a snapshot of it, and a prompt of 128 tokens. Fails where a use
exceeds what the plan allows it, or the resident memory exceeds --memory. Prints both, by use.
"""
import re
import sys
import tempfile
import threading
import time
import urllib.request

from lifetimes import Server
from wire import KEY, Wire, ce

TENANTS, STEPS, SAMPLES, MIB = 8, 3, 4, 2**20
USES = ["weights", "passes", "adapters", "snapshots", "kv"]


def gauges(url):
    """In use and planned, {use: bytes} each."""
    with urllib.request.urlopen(url) as reply:
        rows = re.findall(r'^strata_memory(_plan)?_bytes\{use="(\w+)"\} (\S+)$', reply.read().decode(), re.M)
    return ({use: float(value) for plan, use, value in rows if bool(plan) == planned} for planned in (False, True))


def work(url, number, rank, tokens, all_trained, failures):
    try:
        wire = Wire(url, KEY)
        model = wire.model(wire.session(), rank=rank, seed=number)
        ids = [1 + (7 * i + number) % 4000 for i in range(tokens + 1)]
        for _ in range(STEPS):
            model.run([ce(ids)])
            model.step(learning_rate=1e-4)
        saved = wire.result(model.op("save_weights_for_sampler", sampling_session_seq_id=0))
        all_trained.wait()
        for i in range(SAMPLES):
            wire.sampled(saved["sampling_session_id"], i, ids[:128], max_tokens=16, params={"stop": []})
    except BaseException as error:
        failures.append(error)
        all_trained.abort()


def main():
    strata, model, memory, rank, tokens = (sys.argv[1:] + ["2GiB", "32", "512"][len(sys.argv) - 3:])[:5]
    with tempfile.TemporaryDirectory() as data:
        server = Server(strata, model, data, "--memory", memory)
        all_trained, failures, peak = threading.Barrier(TENANTS), [], {}
        tenants = [threading.Thread(target=work, args=(server.url, i, int(rank), int(tokens), all_trained, failures))
                   for i in range(TENANTS)]
        for tenant in tenants:
            tenant.start()
        while any(tenant.is_alive() for tenant in tenants):
            used, plan = gauges(server.metrics_url)
            peak = {use: max(bytes_, peak.get(use, 0.0)) for use, bytes_ in used.items()}
            time.sleep(0.02)
        assert server.stop() == 0
    assert not failures, failures
    print(f"{TENANTS} tenants, rank {rank}, {tokens} tokens a pass   at most in use, MiB   planned, MiB")
    for use in USES:
        print(f"  {use:<40}{peak[use] / MIB:>12.1f}{plan[use] / MIB:>18.1f}")
        assert 0 < peak[use] <= plan[use], f"{use}: {peak[use]} of {plan[use]} planned"
    counted = sum(peak[use] for use in USES)
    print(f"  {'all of these':<40}{counted / MIB:>12.1f}")
    print(f"  {'resident':<40}{peak['resident'] / MIB:>12.1f}{plan['all'] / MIB:>18.1f}")
    assert peak["resident"] <= plan["all"], "more is resident than --memory allows"


if __name__ == "__main__":
    main()
