# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine for CPUs in this process: compiled graphs, bf16, no cache of prefixes, which would answer a prompt that
it has seen. Run by run.py.

By default the engine and its worker are processes of their own, which wait for each other by spinning: they would take
the two cores from the model. In one process the environment is ours to set, as vllm/utils/ompmultiprocessing.py
would.
"""
import glob
import importlib.metadata
import os
import random
import sys
import time

from peer import serve
from works import STEPS

LONGEST = 2304  # tokens of a sequence
MOST_TOKENS = 4096  # of one step: the prompts of decode32
MOST_SEQUENCES = 32
PRELOADED = (f"{sys.prefix}/lib/libiomp5.so", "/usr/lib/*/libtcmalloc_minimal.so.4")  # what vLLM's guide asks for


def set_environment():
    """Starts this program again with what must be there before the first library is loaded."""
    if "VLLM_ENABLE_V1_MULTIPROCESSING" in os.environ:
        return
    threads = int(sys.argv[2])
    os.environ.update({
        "LD_PRELOAD": ":".join(path for pattern in PRELOADED for path in glob.glob(pattern)),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, range(threads)))}]",
        "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0", "OMP_NUM_THREADS": str(threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2"})  # GiB
    os.execv(sys.executable, [sys.executable, *sys.argv])


class VllmPeer:
    def __init__(self, model, _threads, quick):
        from vllm import EngineArgs, LLMEngine, SamplingParams
        self.engine = LLMEngine.from_engine_args(EngineArgs(
            model=model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=LONGEST,
            max_num_seqs=MOST_SEQUENCES, max_num_batched_tokens=MOST_TOKENS, enable_prefix_caching=False,
            disable_log_stats=True, enforce_eager=quick))
        self.params = lambda tokens: SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True,
                                                    detokenize=False)
        self.vocab = self.engine.model_config.get_vocab_size()
        self.added = 0
        of = importlib.metadata.version
        self.versions = f"vLLM {of('vllm-cpu')} (torch {of('torch')})"

    def add(self, length, tokens):
        prompt = {"prompt_token_ids": [random.randrange(self.vocab) for _ in range(length)]}
        self.engine.add_request(str(self.added), prompt, self.params(tokens))
        self.added += 1

    def finish(self):
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def run(self, work):
        return self.prefill(work) if work.kind == "prefill" else self.decode(work)

    def prefill(self, work):
        start = time.perf_counter()
        self.add(work.length, 1)
        self.finish()
        return work.tokens / (time.perf_counter() - start)

    def decode(self, work):
        """From the step with which every prompt has its first token on, STEPS tokens each."""
        for _ in range(work.batch):
            self.add(work.length, STEPS + 2)
        made = {}

        def step_until(tokens):
            while len(made) < work.batch or min(made.values()) < tokens:
                for out in self.engine.step():
                    made[out.request_id] = len(out.outputs[0].token_ids)
            return sum(made.values()), time.perf_counter()

        first, start = step_until(1)
        last, end = step_until(STEPS + 1)
        self.finish()
        return (last - first) / (end - start)


if __name__ == "__main__":
    set_environment()
    serve(VllmPeer)
