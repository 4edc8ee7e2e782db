# SPDX-License-Identifier: Apache-2.0
"""Several samples of one prompt, served by a model whose sequences have states (Qwen3.5), all requests at once: each sample
has the bits it has when its request comes alone, and its logprobs are those of the sequence read anew.

usage: states.py STRATA MODEL_DIR
"""
import random
import sys
import tempfile

from lifetimes import Server
from wire import KEY, Wire, ce, pb, unpack

LENGTHS = [1, 8, 63, 64, 65, 130]  # around the borders of chunks and pages
SAMPLES, TOKENS = 4, 70


def answer(wire, reply):
    out = pb.SampleResponse.FromString(wire.result(reply))
    return [(unpack("i", s.tokens), unpack("f", s.logprobs)) for s in out.sequences]


def check(wire, sampler, numbers):
    rng = random.Random(5)
    prompts = [[rng.randrange(4000) for _ in range(n)] for n in LENGTHS]

    def ask(prompt):
        return wire.sample(sampler, next(numbers), prompt, max_tokens=TOKENS, count=SAMPLES,
                           params={"seed": len(prompt), "stop": []})

    together = [answer(wire, reply) for reply in [ask(prompt) for prompt in prompts]]
    for prompt, got in zip(prompts, together):
        assert got == answer(wire, ask(prompt)), f"prompt of {len(prompt)}: not the same alone"
        assert len(got) == SAMPLES and len({tuple(tokens) for tokens, _ in got}) == SAMPLES
        for tokens, logprobs in got:
            assert len(tokens) == TOKENS
            again = wire.sampled(sampler, next(numbers), prompt + tokens, max_tokens=1, prompt_logprobs=True)
            assert unpack("f", again.prompt_logprobs)[len(prompt):] == logprobs, f"prompt of {len(prompt)}: read anew"


def main():
    strata, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as data:
        server = Server(strata, model, data)
        wire = Wire(server.url, KEY)
        session = wire.session()
        numbers = iter(range(1_000_000))
        check(wire, wire.sampler(session, 0, base_model="tiny"), numbers)
        trained = wire.model(session)
        for _ in range(3):
            trained.run([ce([5, 9, 17, 33, 65, 12, 40, 7])])
            trained.step(learning_rate=1e-2)
        saved = wire.result(trained.op("save_weights_for_sampler", sampling_session_seq_id=1))
        check(wire, saved["sampling_session_id"], numbers)
        assert server.stop() == 0
    print(f"states: {2 * len(LENGTHS)} prompts, {SAMPLES} samples each")


if __name__ == "__main__":
    main()
