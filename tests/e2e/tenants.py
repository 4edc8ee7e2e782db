# SPDX-License-Identifier: Apache-2.0
"""Eight tenants train while 32 samplers run, on one server: every number equals, bit for bit, that of the tenant alone.

usage: tenants.py STRATA MODEL_DIR
Alone means a fresh server on which one tenant after the other does its work, with nobody beside it.
"""
import pathlib
import random
import sys
import tempfile
import threading

from lifetimes import Server
from wire import Wire, arrays, ce, pb, record, rl

TENANTS, SAMPLERS, STEPS = 8, 32, 6
LOSSES = ["cross_entropy", "importance_sampling", "ppo", "cispo"]


def tokens_of(rng, low, high):
    return [rng.randrange(1, 4000) for _ in range(rng.randrange(low, high))]


def data_of(rng, loss):
    out = []
    for _ in range(rng.randrange(1, 4)):
        tokens = tokens_of(rng, 3, 60)
        n = len(tokens) - 1
        if loss == "cross_entropy":
            out.append(ce(tokens, [rng.uniform(-0.5, 2) for _ in range(n)]))
        else:
            out.append(rl(tokens, [-rng.uniform(1, 9) for _ in range(n)], [rng.uniform(-1, 1) for _ in range(n)]))
    return out


def train(url, key, number):
    """A tenant's whole work, its requests sent ahead of their results; everything it was told."""
    rng = random.Random(number)
    wire = Wire(url, key)
    session = wire.session()
    model = wire.model(session, rank=[4, 8, 16, 32][number % 4], seed=number)
    loss = LOSSES[number % len(LOSSES)]
    replies, sampler = [], ""
    for step in range(STEPS):
        replies.append(model.send(data_of(rng, loss), loss))
        if step % 3 == 1:
            replies.append(model.send(data_of(rng, loss), loss))  # accumulates
        replies.append(model.send_step(learning_rate=rng.uniform(1e-4, 3e-3), weight_decay=0.01, grad_clip_norm=1.0))
        if step == STEPS // 2:
            replies.append(model.op("save_weights_for_sampler", sampling_session_seq_id=number))
    told = []
    for reply in replies:
        done = wire.result(reply)
        if isinstance(done, dict):
            assert "error" not in done, done
            sampler = done.get("sampling_session_id", sampler)
            told.append(sorted(done.get("metrics", {}).items()))
        else:
            out = pb.ForwardBackwardOutput.FromString(done)
            told.append((arrays(out), sorted(out.metrics.items())))
    told.append(model.logprobs([ce(tokens_of(rng, 20, 40))]))
    # The snapshot of the middle of the run, after more training.
    told.append([wire.sampled(sampler, i, tokens_of(rng, 5, 30), max_tokens=12, count=2, prompt_logprobs=True,
                              params={"seed": i, "stop": []}).SerializeToString() for i in range(3)])
    return told


def sample_on(url, key, number, stop, counts, told):
    """One of the samplers; its first samples are kept for comparison, the rest is load."""
    rng = random.Random(1000 + number)
    wire = Wire(url, key)
    sampler = wire.sampler(wire.session(), 0, base_model="tiny")
    for i in range(10_000):
        out = wire.sampled(sampler, i, tokens_of(rng, 4, 40), max_tokens=16, params={"seed": i, "stop": []})
        if i < 2:
            told.append(out.SerializeToString())
        counts[number] += 1
        if stop.is_set() and i >= 1:
            return


def serve(strata, model, folder, keys):
    path = pathlib.Path(folder, "keys")
    path.write_text("".join(f"{key} tenant{i}\n" for i, key in enumerate(keys)))
    path.chmod(0o600)
    return Server(strata, model, str(pathlib.Path(folder, "data")), "--keys", str(path), keys=True)


def together(url, keys):
    stop, counts = threading.Event(), [0] * SAMPLERS
    trained, sampled = [None] * TENANTS, [[] for _ in range(SAMPLERS)]

    def run(i):
        trained[i] = train(url, keys[i], i)
    samplers = [threading.Thread(target=sample_on, args=(url, keys[i % TENANTS], i, stop, counts, sampled[i]))
                for i in range(SAMPLERS)]
    trainers = [threading.Thread(target=run, args=(i,)) for i in range(TENANTS)]
    for thread in samplers + trainers:
        thread.start()
    for thread in trainers:
        thread.join()
    stop.set()
    for thread in samplers:
        thread.join()
    return trained, sampled, sum(counts)


def main():
    strata, model = sys.argv[1:3]
    keys = [f"tml-{i:032d}" for i in range(TENANTS)]
    with tempfile.TemporaryDirectory() as folder:
        server = serve(strata, model, folder, keys)
        trained, sampled, count = together(server.url, keys)
        assert server.stop() == 0
    with tempfile.TemporaryDirectory() as folder:
        server = serve(strata, model, folder, keys)
        for i in range(TENANTS):
            assert trained[i] is not None, f"tenant {i} did not get through"
            assert train(server.url, keys[i], i) == trained[i], f"tenant {i}: not the numbers of a run alone"
        done = threading.Event()
        done.set()
        for i in range(SAMPLERS):
            alone = []
            sample_on(server.url, keys[i % TENANTS], i, done, [0] * SAMPLERS, alone)
            assert alone == sampled[i], f"sampler {i}: not the samples of a run alone"
        assert server.stop() == 0
    record([108], "tenants.py")
    print(f"tenants: item [108] passed: {TENANTS} tenants of {STEPS} steps beside {SAMPLERS} samplers "
          f"({count} samples), bit for bit as alone")


if __name__ == "__main__":
    main()
