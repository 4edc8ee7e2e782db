# SPDX-License-Identifier: Apache-2.0
"""Six honest tenants beside two that send every trigger of hostile.py in random order: what the six are told is, bit for bit,
what they are told when two honest tenants are in the attackers' place.

usage: mixed.py STRATA MODEL_DIR [SECONDS, 30] [SEED, 1] [bar]
bar, for ten minutes on a quiet machine: it takes the six at most twice the time
"""
import collections
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import traceback
import types

import hostile_own
import hostile_queues
from hostile import ATTACKS, CASES, MIB, World, memory
from lifetimes import Server
from tenants import data_of, tokens_of
from wire import Wire, arrays, pb

HONEST, MEMORY = 6, 2 << 30
KEYS = [f"tml-{i:032d}" for i in range(HONEST + 5)]
# The first two attack; these keys are the first one's too.
READER, EXPIRED, PLAYER = KEYS[-3:]
# Of hostile.py's tenants with limits.
NEED_LIMITS = {"the fourth request of a quota of three", "a poll and a heartbeat beyond the quota", "a pass beyond its tenant's tokens",
               "a save beyond its tenant's disk",
               "a second request at 0.001/s", *(row[0] for row in hostile_queues.LIMITED)}
TRIGGERS = [case for case in CASES + ATTACKS if case[0] not in NEED_LIMITS | hostile_own.ELSEWHERE]
FAULTS_OF_OURS = (AttributeError, ImportError, NameError, TypeError)
LOSSES = ["cross_entropy", "importance_sampling", "ppo", "cispo"]


def serve(strata, model, folder):
    os.mkdir(folder)
    path = pathlib.Path(folder, "keys")
    path.write_text("".join(f"{key} tenant{i}\n" for i, key in enumerate(KEYS[:-3])) + f"{READER} tenant0 read-only\n"
                    f"{EXPIRED} tenant0 expires=2020-01-31\n{PLAYER} tenant0 sample-only\n")
    path.chmod(0o600)
    return Server(strata, model, f"{folder}/data", "--keys", str(path), "--memory", str(MEMORY), keys=True)


def one_round(wire, seed):
    """A session with training, a snapshot, samples of it and a checkpoint; everything that the tenant was told."""
    rng = random.Random(seed)
    session = wire.session()
    model = wire.model(session, rank=rng.choice([4, 8, 16]), seed=seed)
    told = []
    for step in range(4):
        loss = LOSSES[(seed + step) % len(LOSSES)]
        sent = [model.send(data_of(rng, loss), loss), model.send_step(learning_rate=1e-3)]
        out = pb.ForwardBackwardOutput.FromString(wire.result(sent[0]))
        told += [arrays(out), sorted(out.metrics.items()), sorted(wire.result(sent[1])["metrics"].items())]
    saved = wire.result(model.op("save_weights_for_sampler", sampling_session_seq_id=0))
    for i in range(3):
        told.append(wire.sampled(saved["sampling_session_id"], i, tokens_of(rng, 5, 40), max_tokens=16, count=2,
                                 prompt_logprobs=True, params={"seed": i, "stop": []}).SerializeToString())
    assert "path" in model.save("kept"), "a save was lost"
    wire.ok(f"sessions/{session}/finish", {})
    return told


def honest(url, number, may_go_on, out):
    """Rounds, each with its time, as long as that says."""
    wire = Wire(url, KEYS[number])
    while may_go_on(len(out)):
        begin = time.monotonic()
        told = one_round(wire, 1000 * number + len(out))
        out.append((told, time.monotonic() - begin))


class Attacker(World):
    """What the triggers of hostile.py work on, at a server that is there already."""

    def __init__(self, url, process, folder, number):
        self.url, self.keys = url, [KEYS[number], KEYS[1 - number], READER, EXPIRED, PLAYER]
        self.process = types.SimpleNamespace(**process, send_signal=lambda number: os.kill(process["pid"], number))
        self.log = types.SimpleNamespace(name=f"{folder}/log")
        self.enter()

    def enter(self):
        super().enter()
        for wire in (self.wire, self.other, self.reader, self.expired, self.player):
            wire.http.timeout = 10  # an attacker does not wait long

    def leave(self):
        for wire, session in ((self.wire, self.session), (self.other, self.foreign.id.split(":")[0])):
            wire.post(f"sessions/{session}/finish", {})


def told_of(server):
    """What an attacker knows of the server's process, to hand to a process of its own."""
    return {"pid": server.process.pid, "args": server.process.args}


def new_counts():
    """How often each trigger ran to its end, then how often each was given up, of one attacker."""
    return multiprocessing.Array("q", 2 * len(TRIGGERS))


def triggers_sent(counts, folder):
    """(triggers that ran to their end, those given up, which never ran); fails where one broke for a reason of its own."""
    for path in pathlib.Path(folder).glob("broken*"):
        raise AssertionError(path.read_text())
    why = collections.Counter(line for path in pathlib.Path(folder).glob("given_up*") for line in path.read_text().splitlines())
    for reason, count in why.most_common(5):
        print(f"  given up {count} times: {reason}")
    sums = [sum(column) for column in zip(*counts)]
    done, given_up = sums[:len(TRIGGERS)], sums[len(TRIGGERS):]
    never = [case[0] for case, count in zip(TRIGGERS, done) if count == 0]
    return sum(done), sum(given_up), never


def attack(url, process, folder, number, seed, over, counts, nice=19):
    os.nice(nice)
    dice = random.Random(seed)
    world = None
    while not over.is_set():
        for i in dice.sample(range(len(TRIGGERS)), len(TRIGGERS)):
            what, _, send = TRIGGERS[i]
            if over.is_set():
                break
            if number == 1 and what.startswith("SIGHUP"):
                continue  # one file of keys, one writer
            try:
                world = world or Attacker(url, process, folder, number)
                send(world)
                counts[i] += 1
            except FAULTS_OF_OURS:
                with open(f"{folder}/broken{number}", "a") as file:
                    file.write(f"{what}: {traceback.format_exc()}\n")
                return
            except Exception as fault:  # noqa: BLE001: whatever it was told; the next one begins anew
                counts[len(TRIGGERS) + i] += 1
                with open(f"{folder}/given_up{number}", "a") as file:
                    where = "" if world else "before it began: "
                    file.write(f"{where}{type(fault).__name__}: {' '.join(str(fault).split())[:120]}\n")
                try:
                    world.leave()
                except Exception:  # noqa: BLE001
                    pass
                world = None


def run(strata, model, folder, honest_tenants, may_go_on, others):
    """[(told, seconds)] by tenant; `others(url, process, folder)` starts what runs beside them and returns what ends it."""
    server = serve(strata, model, folder)
    rounds = {number: [] for number in honest_tenants}
    faults, most = [], 0

    def work(number):
        try:
            honest(server.url, number, may_go_on(number), rounds[number])
        except BaseException as error:  # noqa: BLE001: reported below
            faults.append((number, error))
    end = others(server.url, told_of(server), folder)
    threads = [threading.Thread(target=work, args=(number,)) for number in honest_tenants]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, memory(server.process.pid))
        assert server.process.poll() is None, "the server is gone"
        time.sleep(0.1)
    end()
    assert not faults, faults
    server.stop()
    return rounds, most


def main():
    strata, model = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 30
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    tenants = range(2, 2 + HONEST)
    with tempfile.TemporaryDirectory() as folder:
        counts = [new_counts() for _ in range(2)]

        def attackers(url, process, work):
            over = multiprocessing.Event()
            group = [multiprocessing.Process(target=attack, args=(url, process, work, i, seed + i, over, counts[i]), daemon=True)
                     for i in range(2)]
            for each in group:
                each.start()

            def end():
                over.set()
                for each in group:
                    each.join(90)
            return end
        until = time.monotonic() + seconds
        attacked, most = run(strata, model, f"{folder}/attacked", tenants,
                             lambda number: lambda done: done == 0 or time.monotonic() < until, attackers)
        over = threading.Event()

        def replacements(url, _process, _work):
            threads = [threading.Thread(target=honest, args=(url, i, lambda done: not over.is_set(), [])) for i in range(2)]
            for thread in threads:
                thread.start()

            def end():
                over.set()
                for thread in threads:
                    thread.join()
            return end
        alone, _ = run(strata, model, f"{folder}/alone", tenants, lambda number: lambda done: done < len(attacked[number]), replacements)
        sent, failed, never = triggers_sent(counts, f"{folder}/attacked")
    worst = collections.Counter()
    for number in tenants:
        for i, ((told, _), (wanted, _)) in enumerate(zip(attacked[number], alone[number], strict=True)):
            assert told == wanted, f"tenant {number}: round {i} is not what it is beside honest tenants"
        took, would = [sum(second for _, second in rounds[number]) for rounds in (attacked, alone)]
        worst[number] = took / would
    print(f"mixed: {seconds:.0f} s: {sent} triggers ran to their end, of {len(TRIGGERS) - len(never)} kinds of {len(TRIGGERS)}, and {failed} "
          f"were given up; {sum(map(len, attacked.values()))} rounds of "
          f"{HONEST} honest tenants bit for bit as beside honest ones, in {min(worst.values()):.2f} to {max(worst.values()):.2f} times "
          f"their time; anonymous memory at most {most // MIB} of {MEMORY // MIB} MiB")
    assert sent > 20, "hardly any attack"
    assert most < 1.05 * MEMORY
    if "bar" in sys.argv[5:]:
        assert max(worst.values()) < 2, worst


if __name__ == "__main__":
    main()
