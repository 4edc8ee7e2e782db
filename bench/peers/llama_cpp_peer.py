# SPDX-License-Identifier: Apache-2.0
"""llama.cpp through llama-cpp-python's bare bindings, as its own llama-bench drives it: random tokens, nothing sampled,
fused attention. Run by run.py."""
import importlib.metadata
import random
import time

import llama_cpp as lib

from peer import serve
from works import STEPS

MOST_TOKENS = 2048  # of one call
CONTEXT = 32 * (128 + STEPS + 2)  # of all sequences together: decode32
MOST_SEQUENCES = 32


class LlamaCppPeer:
    def __init__(self, gguf, threads, _quick):
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(gguf.encode(), lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {gguf}")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = CONTEXT, MOST_TOKENS, MOST_SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type, params.kv_unified = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED, True
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(MOST_TOKENS, 0, 1)
        self.versions = f"llama.cpp of llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"

    def decode_rows(self, rows):
        """One call of (sequence, position, whether its logits are wanted) rows with random tokens."""
        self.batch.n_tokens = len(rows)
        for i, (sequence, position, wanted) in enumerate(rows):
            self.batch.token[i] = random.randrange(self.vocab)
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = wanted
        if lib.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError(f"llama_decode fails with {len(rows)} tokens")
        lib.llama_synchronize(self.context)

    def prompt(self, sequence, length):
        self.decode_rows([(sequence, position, position == length - 1) for position in range(length)])

    def run(self, work):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        return self.prefill(work) if work.kind == "prefill" else self.decode(work)

    def prefill(self, work):
        start = time.perf_counter()
        self.prompt(0, work.length)
        return work.tokens / (time.perf_counter() - start)

    def decode(self, work):
        for sequence in range(work.batch):
            self.prompt(sequence, work.length)
        start = time.perf_counter()
        for step in range(STEPS):
            self.decode_rows([(sequence, work.length + step, True) for sequence in range(work.batch)])
        return work.tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    serve(LlamaCppPeer)
