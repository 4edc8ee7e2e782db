# SPDX-License-Identifier: Apache-2.0
"""A server over ranks: the answers and files of one process, through Tinker's SDK and OpenAI's client, also where they fit
schemas; each rank stopped for some seconds while several tenants train and sample, which readiness names and nobody else
notices; and each killed under such load, which ends all, after which what was acknowledged is there. Needs Open MPI.

usage: serve_ranks.py STRATA MODEL_DIR [RANKS, 2] [pipeline, tensor, expert, or all of --ranks] [SEED]

Of expert ranks it serves a random model with experts, of MODEL_DIR's widths and tokenizer.
"""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import httpx
import openai
import tinker
from tinker import types

from kill import Sampler, Trainer, check_checkpoints, check_files, check_futures
from lifetimes import Server
from sdk_tour import datum, settled
from wire import KEY, Wire, ce, wait_until

MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
MEMORY = ["--memory", "1GiB"]
A = [5, 9, 17, 33, 65, 12, 40, 7]
SILENT = 12.0  # seconds that a rank is stopped for
SOON = 10.0    # within which readiness says so, and within which all end with one
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "count": {"type": "integer"},
                                           "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3}},
          "required": ["city", "count", "tags"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}
# What answers have to fit, and whether they are JSON.
FITS = [({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}}, True),
        ({"tools": [TOOL], "tool_choice": "required"}, False),
        ({"extra_body": {"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2,4}"}}}, False),
        ({"extra_body": {"structured_outputs": {"grammar": 'root ::= "yes" | "no" rest\nrest ::= "!" | "?"'}}}, False)]


def key_of(tenant):
    return f"{KEY}{tenant}"


class RankedServer(Server):
    """The same as processes; what they print on stderr is kept."""

    kind = "pipeline"

    def __init__(self, strata, model, data, ranks, *options):
        self.ranks, self.errors = ranks, pathlib.Path(f"{data}.stderr")
        with open(self.errors, "w") as errors:
            super().__init__([*MPIRUN, "-n", str(ranks), strata], model, data, "--ranks",
                             self.kind if "=" in self.kind else f"{self.kind}={ranks}", *MEMORY, *options, stderr=errors)

    def pid(self, rank):
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == self.process.pid and f"OMPI_COMM_WORLD_RANK={rank}".encode() in environ:
                return int(folder.name)
        raise AssertionError(f"no rank {rank}")

    def stop(self, with_signal=signal.SIGUSR2):  # which mpirun hands on
        return super().stop(with_signal)


def use_sdk(url):
    """What it gives: losses, logprobs, tokens, and the paths of what was saved."""
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    training = settled(service.create_lora_training_client(base_model="tiny", rank=8, seed=3))
    data, out = [datum(tokens) for tokens in (A, A[::-1], A * 9)], []
    for _ in range(3):
        passed = training.forward_backward(data, "cross_entropy").result()
        out += [passed.metrics["loss:sum"], *(list(o["logprobs"].data) for o in passed.loss_fn_outputs)]
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    state = training.save_state("state").result().path
    saved = training.save_weights_for_sampler("sampler").result().path
    for path in (saved, None):
        weights = {"model_path": path} if path else {"base_model": "tiny"}
        sampling = settled(service.create_sampling_client(**weights))
        answer = sampling.sample(prompt=types.ModelInput.from_ints(A * 20), num_samples=3, include_prompt_logprobs=True,
                                 sampling_params=types.SamplingParams(max_tokens=24, seed=11, temperature=0.7)).result()
        out += [(list(s.tokens), list(s.logprobs)) for s in answer.sequences] + [list(answer.prompt_logprobs)]
    again = settled(service.create_training_client_from_state_with_optimizer(state))
    again.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    passed = again.forward_backward(data, "cross_entropy").result()
    return [*out, passed.metrics["loss:sum"]]


def use_openai(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    done = client.completions.create(model="tiny", prompt="The quick brown fox", max_tokens=24, seed=5, temperature=0.8,
                                     n=2, logprobs=2)
    out = [(c.text, c.logprobs.token_logprobs) for c in done.choices]
    streamed = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}], seed=6,
                                              max_tokens=16, stream=True)
    out.append("".join(c.choices[0].delta.content or "" for c in streamed if c.choices))
    return out + fitting_answers(client, seed=7)


def fitting_answers(client, seed):
    out = []
    for number, (fit, is_json) in enumerate(FITS):
        done = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "An answer:"}], seed=seed + number,
                                              max_tokens=96, temperature=1, n=2, logprobs=True, top_logprobs=2, **fit)
        for choice in done.choices:
            said, calls = choice.message.content, choice.message.tool_calls or []
            assert choice.finish_reason == "length" or not is_json or json.loads(said) is not None, (fit, choice)
            values = [(t.logprob, [(o.token, o.logprob) for o in t.top_logprobs]) for t in choice.logprobs.content or []]
            out.append((choice.finish_reason, said, [(c.function.name, c.function.arguments) for c in calls], values))
    return out


def saved_files(data):
    """Of the one checkpoint of each kind: folders' names differ, and strata.json says when it was made."""
    return {(f.parent.parent.name, f.name): f.read_bytes()
            for f in pathlib.Path(data).glob("checkpoints/*/*/*/*/*") if f.name != "strata.json"}


def same_as_one_process(strata, model, ranks):
    with tempfile.TemporaryDirectory() as folder:
        seen = []
        for name in ("one", "ranks"):
            data = f"{folder}/{name}"
            server = Server(strata, model, data, *MEMORY) if name == "one" else RankedServer(strata, model, data, ranks)
            answers = use_sdk(server.url)
            texts = use_openai(server.url)
            assert server.stop() == 0, name
            seen.append((answers, texts, saved_files(data)))
        one, several = seen
        assert several[0] == one[0], "the SDK's answers differ"
        assert several[1] == one[1], "the texts differ"
        assert several[2].keys() == one[2].keys() and len(one[2]) >= 6, (several[2].keys(), one[2].keys())
        for name, content in one[2].items():
            assert several[2][name] == content, name
    print(f"serve_ranks: {len(one[2])} files and all answers of {ranks} ranks are those of one process", flush=True)


def refusals(strata, model):
    for count, options, wanted in [(2, ["--ranks", "data=2"], "a server has no data ranks"),
                                   (2, ["--ranks", "expert=2"], "the model has no experts"),
                                   (4, ["--ranks", "expert=2,tensor=2"], "give tensor=N or expert=N"),
                                   (2, ["--ranks", "pipeline=2", "--stages", "2"], "one stage"),
                                   (2, ["--ranks", "pipeline=2", "--speculate", "mtp"], "--speculate mtp"),
                                   (2, [], "give --ranks pipeline=2")]:
        with tempfile.TemporaryDirectory() as data:
            done = subprocess.run([*MPIRUN, "-n", str(count), strata, "serve", "--model", f"tiny={model}", "--no-keys",
                                   "--data", data, *MEMORY, *options], capture_output=True, text=True, timeout=60)
            assert done.returncode != 0 and wanted in done.stderr, (options, done.returncode, done.stderr)


def readiness(server):
    try:
        reply = httpx.get(f"{server.metrics_url.removesuffix('/metrics')}/readyz", timeout=2)
        return reply.status_code, reply.text
    except httpx.HTTPError as error:
        return 0, str(error)


class Patient(httpx.Client):
    """Sends again what is to be sent again, as the SDK does."""

    def request(self, *args, **more):
        while (reply := super().request(*args, **more)).status_code == 503:
            time.sleep(float(reply.headers["retry-after"]))
        return reply


class Tenant(threading.Thread):
    """Trains and samples so many times; all that it was answered."""

    def __init__(self, url, number, steps):
        super().__init__(daemon=True)
        self.url, self.number, self.steps, self.out, self.fault = url, number, steps, [], None
        self.wire = Wire(url, key_of(number))
        self.wire.http = Patient(base_url=self.wire.http.base_url, headers=self.wire.http.headers, timeout=60)

    def run(self):
        try:
            self.work()
        except Exception as error:  # noqa: BLE001: reported by who waits
            self.fault = error

    def work(self):
        session = self.wire.session()
        tiny = self.wire.model(session, seed=5 + self.number, rank=4 << self.number)
        base = self.wire.sampler(session, 0, base_model="tiny")
        saved = tiny.save("first", "save_weights_for_sampler")["path"]
        own = self.wire.sampler(session, 1, model_path=saved)
        for step in range(self.steps):
            self.out.append(tiny.logprobs([ce(A), ce(A * (20 + 5 * self.number))]))
            tiny.run([ce(A * 20), ce(A[::-1])])
            tiny.step()
            for sampler in (base, own):
                sampled = self.wire.sampled(sampler, step, A, max_tokens=12, count=2, params={"seed": step})
                self.out.append([bytes(s.tokens) + bytes(s.logprobs) for s in sampled.sequences])


class Chat(Tenant):
    """Asks for answers that fit schemas."""

    def work(self):
        client = openai.OpenAI(base_url=self.url + "/v1", api_key=key_of(self.number), max_retries=100)
        for step in range(self.steps):
            self.out.append(fitting_answers(client, seed=100 * step))


def worked(url, steps, meanwhile=None):
    """What each of several tenants was answered, who all work at once."""
    tenants = [Tenant(url, number, steps) for number in range(3)] + [Chat(url, 3, 1)]
    for tenant in tenants:
        tenant.start()
    if meanwhile:
        assert wait_until(lambda: all(len(t.out) >= 4 for t in tenants[:3]) or any(t.fault for t in tenants), 120)
        meanwhile()
        assert all(t.is_alive() for t in tenants[:3]) or any(t.fault for t in tenants), "they had ended before"
    for tenant in tenants:
        tenant.join(900)
        if tenant.fault:
            raise tenant.fault
        assert not tenant.is_alive()
    return [tenant.out for tenant in tenants]


def stopped_ranks(strata, model, ranks, steps=6):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(strata, model, f"{folder}/one", *MEMORY)
        begin = time.monotonic()
        wanted = worked(server.url, steps)
        print(f"serve_ranks: four tenants' work takes one process {time.monotonic() - begin:.1f} s", flush=True)
        assert server.stop() == 0
        server = RankedServer(strata, model, f"{folder}/ranks", ranks)
        for rank in range(ranks):
            def stop_for_a_while(rank=rank):
                pid, begin, red = server.pid(rank), time.monotonic(), None
                os.kill(pid, signal.SIGSTOP)
                while time.monotonic() - begin < SILENT:
                    code, text = readiness(server)
                    if red is None and code != 200:
                        red = time.monotonic() - begin
                        assert rank == 0 or (code == 503 and f"rank {rank} (" in text), (code, text)
                    time.sleep(0.2)
                os.kill(pid, signal.SIGCONT)
                assert red is not None and red < SOON, red
                assert wait_until(lambda: readiness(server)[0] == 200, SOON), readiness(server)
                print(f"serve_ranks: rank {rank} stopped for {SILENT:.0f} s; not ready after {red:.1f} s", flush=True)
            begin = time.monotonic()
            got = worked(server.url, steps, stop_for_a_while)
            assert got == wanted, f"rank {rank}: other bits"
            print(f"serve_ranks: four tenants' work has the bits of one process, in {time.monotonic() - begin:.1f} s", flush=True)
        assert server.stop() == 0


def keyed(client, number, url):
    client.wire = Wire(url, key_of(number))
    return client


def killed_ranks(strata, model, ranks, seed):
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        data, acknowledged = pathlib.Path(folder) / "data", {}
        for rank in list(range(ranks)) * 2:
            server = RankedServer(strata, model, str(data), ranks)
            clients = [keyed(kind(server.url, chance.random()), number, server.url)
                       for number, kind in enumerate([Trainer, Trainer, Trainer, Sampler, Sampler])]
            for client in clients:
                client.start()
            assert wait_until(lambda: any(c.acknowledged for c in clients), 60)
            time.sleep(3.0 * chance.random())
            begin = time.monotonic()
            os.kill(server.pid(rank), signal.SIGKILL)
            code = server.process.wait(60)
            seconds = time.monotonic() - begin
            text = server.errors.read_text()
            assert code != 0 and seconds < SOON, (code, seconds)
            assert f"rank {rank}" in text, text
            for client in clients:
                client.join(90)
                if client.fault:
                    raise client.fault
            server = RankedServer(strata, model, str(data), ranks)
            for number, client in enumerate(clients):
                paths = acknowledged.setdefault(number, set())
                paths |= client.acknowledged
                wire = Wire(server.url, key_of(number))
                check_futures(wire, [client])
                check_checkpoints(wire, paths)
            assert server.stop() == 0
            check_files(data)
            print(f"serve_ranks: rank {rank} killed; all ended in {seconds:.1f} s, exit code {code}; "
                  f"{sum(map(len, acknowledged.values()))} acknowledged checkpoints of {len(clients)} tenants load", flush=True)


def with_experts(strata, model, folder):
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
               "moe_intermediate_size": 192, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    source = pathlib.Path(folder) / "config"
    shutil.copytree(model, source, ignore=shutil.ignore_patterns("*.safetensors"))
    (source / "config.json").write_text(json.dumps(config))
    subprocess.run([strata, "init", "--config", source, "--out", f"{folder}/model", "--seed", "1"], check=True)
    return f"{folder}/model"


def main():
    strata, model = sys.argv[1:3]
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    if len(sys.argv) > 4:
        RankedServer.kind = sys.argv[4]
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else int(time.time())
    print(f"serve_ranks: {RankedServer.kind}, {ranks} ranks, seed {seed}", flush=True)
    refusals(strata, model)
    with tempfile.TemporaryDirectory() as folder:
        if "expert" in RankedServer.kind:
            model = with_experts(strata, model, folder)
        stopped_ranks(strata, model, ranks)
        killed_ranks(strata, model, ranks, seed)
        same_as_one_process(strata, model, ranks)  # last: its SDK goes on to call servers that have ended
    print("serve_ranks: all passed")


if __name__ == "__main__":
    main()
