# SPDX-License-Identifier: Apache-2.0
"""10,000 tenants in the keys' file, 200 of them busy, two that send every trigger of hostile.py: no request of an honest one is
refused, and the p99 of heartbeats stays below 100 ms. The generators share one core, at nice 19; heartbeats are timed elsewhere.

usage: many_tenants.py STRATA MODEL_DIR [SECONDS, 600] [SEED, 1] [NICE, 19]
NICE: less on a machine that others use too, where the generators would get nothing.
"""
import asyncio
import collections
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import time

import httpx

import hostile_own
from hostile import LIMITS, MIB, memory
from lifetimes import Server
from mixed import TRIGGERS, attack, new_counts, tenants_file, told_of, triggers_sent
from wire import Model, ce, pb

TENANTS, BUSY, BYSTANDERS, MEMORY = 10_000, 200, 50, 4 << 30
SENT = [trigger for trigger in TRIGGERS if trigger[0] not in hostile_own.ELSEWHERE]  # all of this server
ROUND_SECONDS = 20.0  # of each busy tenant


def key_of(number):
    return f"tml-{10_000_000 + number:032d}"


def serve(strata, model, folder):
    path = tenants_file(folder, 2)
    with path.open("a") as file:
        file.writelines(f"{key_of(i)} busy{i}\n" for i in range(TENANTS))
    return Server(strata, model, f"{folder}/data", "--keys", str(path), "--audit", f"{folder}/audit", "--memory", str(MEMORY),
                  "--max-adapters", "512", *LIMITS, "--result-ttl", "60", keys=True)


def be_small():
    """A generator: one core for all of them, and whoever else wants it first."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.nice(int(sys.argv[5]) if len(sys.argv) > 5 else 19)


class Tenant:
    """Rounds of a session: a model, a pass, a step, a sample, heartbeats, the end. What is not 200 is written down."""

    def __init__(self, url, number, told):
        self.http = httpx.AsyncClient(base_url=url + "/api/v1/", timeout=120, headers={"X-API-Key": key_of(number)})
        self.dice, self.told, self.seq = random.Random(number), told, 0

    async def post(self, path, **body):
        reply = await self.http.post(path, **body)
        self.told[path.split("/")[0], reply.status_code] += 1
        if reply.status_code not in (200, 408):
            self.told["refused: " + reply.text[:200], reply.status_code] += 1
            raise ConnectionError(reply.text)
        return reply

    async def json(self, path, **body):
        return (await self.post(path, json=body)).json()

    async def result(self, request):
        while True:
            reply = await self.post("retrieve_future", json={"request_id": request["request_id"]})
            if reply.status_code == 200:
                break
        if reply.headers["content-type"] != "application/x-protobuf":
            assert "error" not in reply.json(), reply.text
            return reply.json()
        return reply.content

    async def round(self):
        tokens = [self.dice.randrange(1, 4000) for _ in range(self.dice.randrange(8, 60))]
        session = (await self.json("create_session", tags=[], sdk_version="0.38.0"))["session_id"]
        made = await self.json("create_model", session_id=session, model_seq_id=0, base_model="tiny", lora_config={"rank": 4, "seed": 1})
        model = Model(None, (await self.result(made))["model_id"])
        sampler = (await self.json("create_sampling_session", session_id=session, sampling_session_seq_id=0,
                                   base_model="tiny"))["sampling_session_id"]
        for _ in range(2):
            body = model.message([ce(tokens)], "cross_entropy", model.next()).SerializeToString()
            sent = await self.post("forward_backward", content=body, headers={"Content-Type": "application/x-protobuf"})
            step = await self.json("optim_step", model_id=model.id, seq_id=model.next(), adam_params={"learning_rate": 1e-3})
            await self.json("session_heartbeat", session_id=session)
            assert isinstance(await self.result(sent.json()), bytes)
            await self.result(step)
        self.seq += 1
        sampled = await self.json("asample", num_samples=1, prompt={"chunks": [{"type": "encoded_text", "tokens": tokens}]},
                                  sampling_params={"max_tokens": 8}, sampling_session_id=sampler, seq_id=self.seq)
        assert pb.SampleResponse.FromString(await self.result(sampled)).sequences
        await self.json(f"sessions/{session}/finish")

    async def run(self, until, rounds):
        await asyncio.sleep(self.dice.random() * ROUND_SECONDS)
        while time.monotonic() < until:
            begin = time.monotonic()
            try:
                await self.round()
                rounds.append(time.monotonic() - begin)
            except ConnectionError:
                pass  # written down
            except (httpx.HTTPError, AssertionError) as error:
                self.told[f"failed: {error!r}"[:200], 0] += 1
            await asyncio.sleep(max(0.0, ROUND_SECONDS - (time.monotonic() - begin)) * (0.5 + self.dice.random()))


def busy(url, seconds, pipe):
    be_small()
    told, rounds = collections.Counter(), []

    async def all_of_them():
        until = time.monotonic() + seconds
        await asyncio.gather(*(Tenant(url, number, told).run(until, rounds) for number in range(BUSY)))
    asyncio.run(all_of_them())
    pipe.send((told, rounds))


def beats(url, over, pipe):
    """Heartbeats of tenants who do nothing else, one after the other."""
    clients, waits, codes = [], [], collections.Counter()
    for number in range(BUSY, BUSY + BYSTANDERS):
        http = httpx.Client(base_url=url + "/api/v1/", timeout=60, headers={"X-API-Key": key_of(number)})
        clients.append((http, http.post("create_session", json={"tags": []}).json()["session_id"]))
    while not over.is_set():
        for http, session in clients:
            begin = time.monotonic()
            codes[http.post("session_heartbeat", json={"session_id": session}).status_code] += 1
            waits.append(time.monotonic() - begin)
            time.sleep(0.02)
    pipe.send((sorted(waits), codes))


def attacker(*arguments):
    be_small()
    attack(*arguments, nice=0)


def main():
    strata, model = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 600
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    with tempfile.TemporaryDirectory() as folder:
        server = serve(strata, model, folder)
        pathlib.Path(folder, "log").touch()
        over, counts = multiprocessing.Event(), [new_counts(SENT) for _ in range(2)]
        (told_in, told_out), (waits_in, waits_out) = multiprocessing.Pipe(False), multiprocessing.Pipe(False)
        group = [multiprocessing.Process(target=beats, args=(server.url, over, waits_out), daemon=True),
                 multiprocessing.Process(target=busy, args=(server.url, seconds, told_out), daemon=True)]
        group += [multiprocessing.Process(target=attacker, args=(server.url, told_of(server), folder, i, seed + i, over, counts[i],
                                                                   SENT), daemon=True) for i in range(2)]
        for each in group:
            each.start()
        most = 0
        while not told_in.poll(0.2):
            most = max(most, memory(server.process.pid))
            assert server.process.poll() is None, "the server is gone"
            assert group[1].is_alive() or told_in.poll(1), "the generator is gone"
        told, rounds = told_in.recv()
        over.set()
        waits, codes = waits_in.recv()
        for each in group:
            each.join(90)
        server.stop()
        sent, failed, _, _ = triggers_sent(counts, folder, SENT)
    p99 = waits[int(0.99 * len(waits))]
    bad = {key: count for key, count in told.items() if key[1] not in (200, 408)}
    requests = sum(count for (path, _), count in told.items() if not path.startswith(("refused", "failed")))
    print(f"many_tenants: {seconds:.0f} s, {TENANTS} tenants, {BUSY} busy: {len(rounds)} rounds, {requests} requests, "
          f"{sum(bad.values())} refused; {sent} triggers of two hostile ones, "
          f"{failed} given up; {len(waits)} heartbeats of {BYSTANDERS} more: p50 {1e3 * waits[len(waits) // 2]:.1f}, "
          f"p99 {1e3 * p99:.0f}, at most {1e3 * waits[-1]:.0f} ms; anonymous memory at most {most // MIB} of {MEMORY // MIB} MiB")
    assert not bad, bad
    assert set(codes) == {200}, codes
    assert len(rounds) >= BUSY * seconds / ROUND_SECONDS / 4, "hardly anybody was busy"
    assert sent > 20 * seconds / 600, "hardly any attack"
    assert p99 < 0.1, p99
    assert most < 1.05 * MEMORY


if __name__ == "__main__":
    main()
