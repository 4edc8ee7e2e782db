# SPDX-License-Identifier: Apache-2.0
"""The works of `make peers`: those of `strata bench` that peers can do too, in the shapes that it gives them."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Work:
    name: str  # of `strata bench`
    label: str  # in docs/peers.md and its picture
    kind: str  # train, prefill or decode
    batch: int  # sequences
    length: int  # tokens of each; the prompt of a decode
    recompute: bool = False
    adapters: bool = False  # decode: each sequence with its own
    peers: tuple = ()

    @property
    def tokens(self):
        """Tokens that are timed."""
        return self.batch * (STEPS if self.kind == "decode" else self.length)


STEPS = 32  # timed steps of a decode
RANK = 32  # of an adapter, which is on every projection

SERVERS = ("vllm", "llama_cpp")
WORKS = [
    Work("train_s512", "train 4 x 512", "train", 4, 512, peers=("peft",)),
    Work("train_s512_remat", "train 4 x 512, recompute", "train", 4, 512, recompute=True, peers=("peft",)),
    Work("train_s2048_remat", "train 1 x 2048, recompute", "train", 1, 2048, recompute=True, peers=("peft",)),
    Work("prefill512", "prefill 512", "prefill", 1, 512, peers=SERVERS),
    Work("prefill2048", "prefill 2048", "prefill", 1, 2048, peers=SERVERS),
    Work("decode1", "decode 1", "decode", 1, 128, peers=SERVERS),
    Work("decode8", "decode 8", "decode", 8, 128, peers=SERVERS),
    Work("decode32", "decode 32", "decode", 32, 128, peers=SERVERS),
    Work("lora8", "decode 8, eight adapters", "decode", 8, 128, adapters=True, peers=("peft",)),
]
BY_NAME = {work.name: work for work in WORKS}
