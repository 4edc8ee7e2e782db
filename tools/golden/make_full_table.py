#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `strata train --method full` saves, read by transformers: the table in docs/transformers.md.

  tools/golden/make_full_table.py STRATA [--only CASE,...]    prints the table; --write puts it into the page

Each golden model is trained for a few steps and what was saved is loaded twice: by the class that its config names, which
must find every tensor and know every tensor, and as the goldens' reference, in float64 and in float32, for the logits of
`strata probe` on the same folder. The bar is that of the goldens in float32: ten times transformers' own error, 2e-6 at least.
"""
import argparse
import json
import os
import re
import sys
import tempfile

import torch
from safetensors.torch import load_file

import golden_reference as gr
import golden_run
import make_golden
import make_peft_form

ROOT = make_golden.ROOT
GOLDEN = make_peft_form.GOLDEN
PAGE = os.path.join(ROOT, "docs", "transformers.md")
BEGIN, END = "<!-- made by tools/golden/make_full_table.py -->", "<!-- end -->"


def cases():
    with open(os.path.join(GOLDEN, "goldens.json"), encoding="utf-8") as f:
        return sorted({row["model"].split("/")[0] for row in json.load(f) if row["model"].endswith("/model")})


def loading_info(folder):
    """(missing, unexpected) of the class that the config names."""
    import transformers
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        name = json.load(f)["architectures"][0]
    _, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    return name, sorted(info["missing_keys"]), sorted(info["unexpected_keys"])


def train(strata, name, work):
    model, data, out = (os.path.join(work, part) for part in ("model", "data.jsonl", "out"))
    make_peft_form.copy_with_tokenizer(os.path.join(GOLDEN, name, "model"), model)
    make_peft_form.write_data(data)
    make_peft_form.run(strata, "train", "--method", "full", "--model", model, "--data", data, "--out", out, "--dtype", "f32",
                       "--epochs", "2", "--batch-tokens", "128", "--lr", "0.003")
    return model, out


def changed(model, out):
    tensors = lambda folder: {k: v for f in sorted(os.listdir(folder)) if f.endswith(".safetensors")
                              for k, v in load_file(os.path.join(folder, f)).items()}
    before, after = tensors(model), tensors(out)
    assert set(before) == set(after), sorted(set(before) ^ set(after))
    return sum(1 for k in after if not torch.equal(before[k], after[k])), len(after)


def row(strata, name):
    with tempfile.TemporaryDirectory() as work:
        model, out = train(strata, name, work)
        moved, total = changed(model, out)
        assert moved > 0, name
        architecture, missing, unexpected = loading_info(out)
        request = dict(make_peft_form.make_request(out, None, 7), want=["logits"])
        for seq in request["sequences"]:
            seq.pop("adapter", None)
        files = [os.path.join(work, part) for part in ("request.json", "probe.safetensors")]
        gr.save_json(files[0], request)
        make_peft_form.run(strata, "probe", "--model", out, "--request", files[0], "--out", files[1], "--dtype", "f32")
        got = load_file(files[1])["logits"].double().numpy()
        truth, single = (golden_run.run_request(out, [], request, kind)["logits"] for kind in ("f64", "f32"))
    error, bar = gr.relative_l2(got, truth), max(10 * gr.relative_l2(single, truth), 2e-6)
    return dict(name=name, architecture=architecture, total=total, moved=moved, missing=missing, unexpected=unexpected,
                error=error, bar=bar, fine=not missing and not unexpected and error <= bar)


def table(rows):
    out = ["| golden | class of transformers | tensors | trained | missing | unexpected | error | bar |",
           "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        out.append(f"| {r['name']} | {r['architecture']} | {r['total']} | {r['moved']} | {len(r['missing'])} | "
                   f"{len(r['unexpected'])} | {r['error']:.1e} | {r['bar']:.1e} |")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("strata", help="the program")
    parser.add_argument("--only", help="comma list of goldens")
    parser.add_argument("--write", action="store_true", help="put the table into docs/transformers.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.only.split(",") if args.only else cases():
        try:
            rows.append(row(args.strata, name))
        except AssertionError as fault:
            print(f"{name}: {fault}", file=sys.stderr, flush=True)
            continue
        r = rows[-1]
        print(f"{name}: {'fine' if r['fine'] else 'FAULT'} {r['missing'][:3]} {r['unexpected'][:3]} {r['error']:.1e}", file=sys.stderr,
              flush=True)
    print(table(rows))
    if args.write:
        with open(PAGE, encoding="utf-8") as f:
            page = f.read()
        page = re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table(rows)}\n{END}", page, flags=re.S)
        with open(PAGE, "w", encoding="utf-8") as f:
            f.write(page)
    return 0 if all(r["fine"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
