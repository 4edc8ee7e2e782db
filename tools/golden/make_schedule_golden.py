#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the queues of PyTorch's own pipeline schedules to tests/schedule/pytorch/ (torch.distributed.pipelining, its one
source; tools/requirements-golden.txt pins the version).

usage: python3 tools/golden/make_schedule_golden.py

queues.txt has a line for each schedule, ranks p in 2..8, micro-batches m in 4..32 and chunks v in 1..4:
  NAME P M V QUEUES LOWERED     FNV-1a hashes of the table as CSV without idle places: computation, and with transfers
  NAME P M V refused            what PyTorch refuses
gpipe and 1f1b are what PyTorch's runtime does on a stage that records it; 1f1b_printed is the table that it prints, which
differs. *.csv are whole tables, as PyTorch writes them.
"""
import csv
import os

import torch
from torch.distributed.pipelining import schedules

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "schedule", "pytorch")
RANKS, MICROBATCHES, CHUNKS = range(2, 9), range(4, 33), range(1, 5)
LOOPED = {"circular": schedules.ScheduleLoopedBFS, "interleaved": schedules.ScheduleInterleaved1F1B,
          "zb1p": schedules.ScheduleInterleavedZeroBubble}


class Stage:
    """What schedules ask of a stage; its passes only say that they ran."""

    has_backward, submod, device, group, dw_builder = True, None, "cpu", None, None

    def __init__(self, index, num_stages, num_ranks):
        self.stage_index, self.num_stages, self.group_size = index, num_stages, num_ranks
        self.group_rank = index % num_ranks
        self.is_first, self.is_last = index == 0, index == num_stages - 1
        self.stage_index_to_group_rank = {s: s % num_ranks for s in range(num_stages)}
        self.ran = []

    def forward_one_chunk(self, microbatch, *args, **kwargs):
        self.ran.append(schedules._Action(self.stage_index, schedules.F, microbatch))

    def backward_one_chunk(self, microbatch, *args, **kwargs):
        self.ran.append(schedules._Action(self.stage_index, schedules.B, microbatch))

    def nothing(self, *args, **kwargs):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = nothing
    release_fwd_send_outputs = perform_reduce_grad = nothing


def looped(cls, num_ranks, num_microbatches, num_chunks):
    stages = [Stage(c * num_ranks, num_ranks * num_chunks, num_ranks) for c in range(num_chunks)]
    return cls(stages, num_microbatches, loss_fn=lambda *_: 0).pipeline_order


def single(cls, num_ranks, num_microbatches, rank=0):
    schedule = cls(Stage(rank, num_ranks, num_ranks), num_microbatches, loss_fn=lambda *_: 0)
    schedule._initialize_stage = schedule._maybe_compute_loss = schedule._update_losses = lambda *_, **__: None
    schedule._maybe_get_loss = lambda *_: None
    schedule._check_inputs = lambda *_: ([()] * num_microbatches, [{}] * num_microbatches)
    return schedule


def runtime(cls, num_ranks, num_microbatches):
    order = {}
    for rank in range(num_ranks):
        schedule = single(cls, num_ranks, num_microbatches, rank)
        schedule._step_microbatches()
        order[rank] = schedule._stage.ran
    return order


def printed(num_ranks, num_microbatches):
    return single(schedules.Schedule1F1B, num_ranks, num_microbatches)._get_pipeline_order()


def queues(order):
    return {rank: [a for a in order[rank] if a is not None and a.is_compute_op] for rank in sorted(order)}


def lowered(order, num_ranks, num_stages):
    return schedules._add_send_recv(queues(order), stage_to_rank=lambda stage: stage % num_ranks, num_stages=num_stages)


def fnv1a(order):
    text = "".join(",".join(map(str, order[rank])) + "\n" for rank in sorted(order))
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def line(name, num_ranks, num_microbatches, num_chunks, make):
    head = f"{name} {num_ranks} {num_microbatches} {num_chunks}"
    try:
        order = make()
    except (ValueError, AssertionError):
        return f"{head} refused"
    return f"{head} {fnv1a(queues(order))} {fnv1a(lowered(order, num_ranks, num_ranks * num_chunks))}"


def lines():
    for p in RANKS:
        for m in MICROBATCHES:
            yield line("gpipe", p, m, 1, lambda: runtime(schedules.ScheduleGPipe, p, m))
            yield line("1f1b", p, m, 1, lambda: runtime(schedules.Schedule1F1B, p, m))
            for name, cls in LOOPED.items():
                for v in CHUNKS:
                    yield line(name, p, m, v, lambda: looped(cls, p, m, v))


def write_table(name, order):
    with open(os.path.join(OUT, name + ".csv"), "w", newline="") as f:
        csv.writer(f).writerows(order[rank] for rank in sorted(order))


def main():
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, "queues.txt"), "w", encoding="utf-8") as f:
        f.write(f"# torch {torch.__version__.split('+')[0]}, by tools/golden/make_schedule_golden.py\n")
        f.writelines(text + "\n" for text in lines())
    for name, cls in LOOPED.items():
        write_table(f"{name}_4_8_2", looped(cls, 4, 8, 2))
    write_table("1f1b_printed_4_8", queues(printed(4, 8)))
    for name, cls in (("zbv", schedules.ScheduleZBVZeroBubble), ("dualpipev", schedules.ScheduleDualPipeV)):
        for p, m in ((2, 4), (3, 7), (4, 10)):
            write_table(f"{name}_{p}_{m}", v_shaped(cls, p, m))
    write_table("interleaved_with_transfers_4_8_2", runtime_table(schedules.ScheduleInterleaved1F1B, 4, 8, 2))


def v_shaped(cls, num_ranks, num_microbatches):
    """Two chunks a rank: stage s and, on the way back, stage 2p - 1 - s."""
    stages = [Stage(0, 2 * num_ranks, num_ranks), Stage(2 * num_ranks - 1, 2 * num_ranks, num_ranks)]
    for stage in stages:
        stage.group_rank = 0
        stage.stage_index_to_group_rank = {s: min(s, 2 * num_ranks - 1 - s) for s in range(2 * num_ranks)}
    return cls(stages, num_microbatches, loss_fn=lambda *_: 0).pipeline_order


def runtime_table(cls, num_ranks, num_microbatches, num_chunks):
    """As its runtime runs it, with actions on sharded weights and on waiting."""
    stages = [Stage(c * num_ranks, num_ranks * num_chunks, num_ranks) for c in range(num_chunks)]
    return cls(stages, num_microbatches, loss_fn=lambda *_: 0).pipeline_order_with_comms


if __name__ == "__main__":
    main()
