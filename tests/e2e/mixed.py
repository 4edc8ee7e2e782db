# SPDX-License-Identifier: Apache-2.0
"""Honest tenants beside some that send every request of hostile.py in random order, at two servers at once, one of which speaks TLS:
what the honest ones are told is, bit for bit, what they are told when honest tenants are in the attackers' place.

usage: mixed.py STRATA MODEL_DIR [SECONDS, 30] [SEED, 1] [bar]
bar, for ten minutes on a quiet machine: it takes the honest ones at most twice the time
"""
import collections
import dataclasses
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import types

import hostile_queues
import hostile_tls
from hostile import ATTACKS, CASES, CROWDED, LIMITED, LIMITS, MIB, World, memory
from lifetimes import Server
from tenants import data_of, tokens_of
from wire import Wire, arrays, pb

MEMORY = 2 << 30
# What attackers leave behind goes soon, so that their own limits do not keep them out: of 3,000 tenants each has a small part.
SHORT = ["--result-ttl", "15", "--session-timeout", "45"]
TRIGGERS = CASES + ATTACKS + CROWDED
FAULTS_OF_OURS = (AttributeError, ImportError, NameError, TypeError)
LOSSES = ["cross_entropy", "importance_sampling", "ppo", "cispo"]


@dataclasses.dataclass
class Side:
    """A server's attackers, who are its first tenants, and its honest ones; the triggers that the attackers send."""
    name: str
    attackers: int
    honest: int
    triggers: list

    def numbers(self):
        return range(2, 2 + self.honest)  # a trigger knows two tenants


SIDES = [Side("plain", 2, 6, TRIGGERS), Side("tls", 1, 2, hostile_tls.ATTACKS)]


def key_of(number, kind=0):
    """Of a tenant's kinds of key: all rights, read-only, expired, sample-only."""
    return f"tml-{20_000_000 + 10 * number + kind:032d}"


def tenants_file(folder, tenants):
    """The keys of so many tenants, of those with limits, and of the crowd that some triggers take part of."""
    kinds = ["", " read-only", " expires=2020-01-31", " sample-only"]
    path = pathlib.Path(folder, "keys")
    path.write_text("".join(f"{key_of(i, kind)} tenant{i}{text}\n" for i in range(tenants) for kind, text in enumerate(kinds)) +
                    "".join(f"{key} {name}\n" for name, key in LIMITED.items()) +
                    "".join(f"tml-{i:032d} crowd{i}\n" for i in range(hostile_queues.TENANTS)))
    path.chmod(0o600)
    return path


def serve(strata, model, folder, side):
    os.mkdir(folder)
    keys = tenants_file(folder, 2 + side.honest)
    more = hostile_tls.options(folder) if side.name == "tls" else []
    return Server(strata, model, f"{folder}/data", "--keys", str(keys), "--audit", f"{folder}/audit", "--memory", str(MEMORY), *LIMITS, *SHORT, *more,
                  keys=True)


def one_round(wire, seed):
    """A session with training, a snapshot, samples of it and a checkpoint; everything that the tenant was told."""
    rng = random.Random(seed)
    session = wire.session()
    model = wire.model(session, rank=rng.choice([4, 8, 16]), seed=seed)
    told = []
    for step in range(4):
        wire.ok("session_heartbeat", {"session_id": session})
        loss = LOSSES[(seed + step) % len(LOSSES)]
        sent = [model.send(data_of(rng, loss), loss), model.send_step(learning_rate=1e-3)]
        out = pb.ForwardBackwardOutput.FromString(wire.result(sent[0]))
        told += [arrays(out), sorted(out.metrics.items()), sorted(wire.result(sent[1])["metrics"].items())]
    saved = wire.result(model.op("save_weights_for_sampler", sampling_session_seq_id=0))
    for i in range(3):
        wire.ok("session_heartbeat", {"session_id": session})
        told.append(wire.sampled(saved["sampling_session_id"], i, tokens_of(rng, 5, 40), max_tokens=16, count=2,
                                 prompt_logprobs=True, params={"seed": i, "stop": []}).SerializeToString())
    assert "path" in model.save("kept"), "a save was lost"
    wire.ok(f"sessions/{session}/finish", {})
    return told


def honest(url, number, may_go_on, out):
    """Rounds, each with its time, as long as that says."""
    wire = Wire(url, key_of(number))
    while may_go_on(len(out)):
        begin = time.monotonic()
        told = one_round(wire, 1000 * number + len(out))
        out.append((told, time.monotonic() - begin))


class Unwatched:
    """What looks at servers of single rows: nobody, and they give way as their attacker does."""
    outside = []

    @staticmethod
    def start(make, *arguments, **more):
        return make(*arguments, **more)

    def bystander(self, *_):
        return types.SimpleNamespace(begin=lambda: None, end=lambda: None, report=lambda *_: [])


class Attacker(World):
    """What the triggers of hostile.py work on, at a server that is there already."""

    def __init__(self, url, process, folder, number):
        self.url, self.keys = url, [key_of(number), key_of(1 - number), *(key_of(number, kind) for kind in (1, 2, 3))]
        self.process = types.SimpleNamespace(**process, send_signal=lambda number: os.kill(process["pid"], number))
        self.log = types.SimpleNamespace(name=f"{folder}/log")
        self.enter()

    def enter(self):
        super().enter()
        self.watch = Unwatched()
        for wire in (self.wire, self.other, self.reader, self.expired, self.player, self.carl, self.carla, self.carlo, self.carrie):
            wire.http.timeout = 10  # an attacker does not wait long

    def beat(self):
        """Its sessions stay alive, as a client's would; fails where they are gone."""
        for wire, session in ((self.wire, self.session), (self.other, self.foreign.id.split(":")[0])):
            wire.ok("session_heartbeat", {"session_id": session})

    def leave(self):
        for wire, session in ((self.wire, self.session), (self.other, self.foreign.id.split(":")[0])):
            wire.post(f"sessions/{session}/finish", {})


def told_of(server):
    """What an attacker knows of the server's process, to hand to a process of its own."""
    return {"pid": server.process.pid, "args": server.process.args}


def new_counts(triggers):
    """How often each ran to its end, how often each was given up, and how often it was answered as alone, of one attacker."""
    return multiprocessing.Array("q", 3 * len(triggers))


def triggers_sent(counts, folder, triggers):
    """(triggers that ran to their end, those given up, those answered as alone, which never ran); fails where one broke for a reason
    of its own."""
    for path in pathlib.Path(folder).glob("broken*"):
        raise AssertionError(path.read_text())
    why = collections.Counter(line for path in pathlib.Path(folder).glob("given_up*") for line in path.read_text().splitlines())
    for reason, count in why.most_common(5):
        print(f"  {count} times: {reason}")
    sums = [sum(column) for column in zip(*counts)]
    done, given_up, as_alone = [sums[i * len(triggers):(i + 1) * len(triggers)] for i in range(3)]
    never = [case[0] for case, count in zip(triggers, done) if count == 0]
    return sum(done), sum(given_up), sum(as_alone), never


def enter(url, process, folder, number, over):
    """An attacker that the server lets in, however often it has to ask; None once it is over."""
    while not over.is_set():
        try:
            return Attacker(url, process, folder, number)
        except FAULTS_OF_OURS:
            raise
        except Exception as fault:  # noqa: BLE001: its own limits, mostly: what it asked for before holds them
            with open(f"{folder}/given_up{number}", "a") as file:
                file.write(f"had to wait: {' '.join(str(fault).split())[:120]}\n")
            time.sleep(0.5)
    return None


def attack(url, process, folder, number, seed, over, counts, triggers, nice=19):
    os.nice(nice)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started
    dice = random.Random(seed)
    world = None
    while not over.is_set():
        for i in dice.sample(range(len(triggers)), len(triggers)):
            what, want, send = triggers[i]
            if number == 1 and what.startswith("SIGHUP"):
                continue  # one file of keys, one writer
            try:
                world = world or enter(url, process, folder, number, over)
                if over.is_set():
                    break
                world.beat()
                got = send(world)
                counts[i] += 1
                counts[2 * len(triggers) + i] += got == want
            except FAULTS_OF_OURS:
                with open(f"{folder}/broken{number}", "a") as file:
                    file.write(f"{what}: {traceback.format_exc()}\n")
                return
            except Exception as fault:  # noqa: BLE001: whatever it was told; the next one begins anew
                counts[len(triggers) + i] += 1
                with open(f"{folder}/given_up{number}", "a") as file:
                    file.write(f"{type(fault).__name__}: {' '.join(str(fault).split())[:120]}\n")
                try:
                    world.leave()
                except Exception:  # noqa: BLE001
                    pass
                world = None


@dataclasses.dataclass
class Seen:
    """Of one side: [(told, seconds)] by honest tenant, and the server's memory at most."""
    rounds: dict
    memory: int = 0


def run(strata, model, folder, may_go_on, others):
    """What was seen of each side; `others(side, server, folder)` starts what runs beside its honest tenants and returns what ends it."""
    os.mkdir(folder)
    servers = [serve(strata, model, f"{folder}/{side.name}", side) for side in SIDES]
    seen = [Seen({number: [] for number in side.numbers()}) for side in SIDES]
    faults = []

    def work(i, number):
        try:
            honest(servers[i].url, number, lambda done: may_go_on(i, number, done), seen[i].rounds[number])
        except BaseException as error:  # noqa: BLE001: reported below
            faults.append((SIDES[i].name, number, error))
    ends = [others(side, server, f"{folder}/{side.name}") for side, server in zip(SIDES, servers)]
    threads = [threading.Thread(target=work, args=(i, number)) for i, side in enumerate(SIDES) for number in side.numbers()]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for server, each in zip(servers, seen):
            each.memory = max(each.memory, memory(server.process.pid))
            assert server.process.poll() is None, "the server is gone"
        time.sleep(0.1)
    for end in ends:
        end()
    assert not faults, faults
    for server in servers:
        server.stop()
    return seen


def main():
    strata, model = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 30
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    counts = {side.name: [new_counts(side.triggers) for _ in range(side.attackers)] for side in SIDES}

    def attackers(side, server, folder):
        over = multiprocessing.Event()
        group = [multiprocessing.Process(target=attack, daemon=True, args=(
            server.url, told_of(server), folder, i, seed + i, over, each, side.triggers)) for i, each in enumerate(counts[side.name])]
        for each in group:
            each.start()

        def end():
            over.set()
            for each in group:
                each.join(150)
                assert not each.is_alive(), "an attack that does not end"
        return end

    def replacements(side, server, _):
        over = threading.Event()
        threads = [threading.Thread(target=honest, args=(server.url, i, lambda done: not over.is_set(), [])) for i in range(side.attackers)]
        for thread in threads:
            thread.start()

        def end():
            over.set()
            for thread in threads:
                thread.join()
        return end

    with tempfile.TemporaryDirectory() as folder:
        until = time.monotonic() + seconds
        attacked = run(strata, model, f"{folder}/attacked", lambda i, number, done: done == 0 or time.monotonic() < until, attackers)
        alone = run(strata, model, f"{folder}/alone", lambda i, number, done: done < len(attacked[i].rounds[number]), replacements)
        sent = {side.name: triggers_sent(counts[side.name], f"{folder}/attacked/{side.name}", side.triggers) for side in SIDES}
    worst = 0.0
    for side, got, wanted in zip(SIDES, attacked, alone):
        times = []
        for number in side.numbers():
            for i, ((told, _), (same, _)) in enumerate(zip(got.rounds[number], wanted.rounds[number], strict=True)):
                assert told == same, f"{side.name}, tenant {number}: round {i} is not what it is beside honest tenants"
            took, would = [sum(second for _, second in each.rounds[number]) for each in (got, wanted)]
            times.append(took / would)
        done, given_up, as_alone, never = sent[side.name]
        print(f"mixed, {side.name}: {seconds:.0f} s: {done} triggers ran to their end, of {len(side.triggers) - len(never)} kinds of "
              f"{len(side.triggers)}, {as_alone} of them with the answer that they have alone, and {given_up} were given up; {sum(map(len, got.rounds.values()))} rounds of {side.honest} honest "
              f"tenants bit for bit as beside honest ones, in {min(times):.2f} to {max(times):.2f} times their time; anonymous memory at "
              f"most {got.memory // MIB} of {MEMORY // MIB} MiB", *(f"  never: {what}" for what in never if seconds >= 600), sep="\n")
        assert done > seconds / 10, "hardly any attack"
        assert not never or seconds < 600, never
        assert got.memory < 1.05 * MEMORY
        worst = max(worst, *times)
    if "bar" in sys.argv[5:]:
        assert worst < 2, worst


if __name__ == "__main__":
    main()
