# SPDX-License-Identifier: Apache-2.0
"""A probe request run by transformers and PEFT, whatever the model's family, and how far they are from the truth.

run_request(model_dir, adapter_dirs, request, kind) returns {output name: float64 array} with the names and shapes of
`strata probe`; golden_reference.py has the kinds.
"""
import numpy as np

import compare_probe
import golden_deepseek_v4
import golden_gpt_oss
import golden_llama4
import golden_moe
import golden_reference as gr


def make_reference(model_dir, adapter_dirs, kind):
    """A Reference, or its kind for models with experts."""
    from transformers import AutoConfig
    kinds = golden_moe.MoeReference if golden_moe.has_experts(model_dir) else gr.Reference
    family = AutoConfig.from_pretrained(model_dir).model_type
    if family in golden_deepseek_v4.FAMILIES:
        kinds = golden_deepseek_v4.V4Reference
    if family in golden_gpt_oss.FAMILIES:
        kinds = golden_gpt_oss.GptOssReference
    if family.removesuffix("_text") in golden_llama4.FAMILIES:
        kinds = golden_llama4.Llama4Reference
    return kinds(model_dir, adapter_dirs, kind)


def run_request(model_dir, adapter_dirs, request, kind, margins=None, routing=None, shake=None):
    """Runs one probe request. margins, a list, receives the gaps on which ids and signs depend; routing those on
    which the choice of experts depends. shake: a seed of Reference.shake."""
    out = {}
    margins = [] if margins is None else margins
    ref = make_reference(model_dir, adapter_dirs, kind)
    if shake is not None:
        ref.shake(shake)
    gr.run_wants(ref, request, out)
    for i, entry in enumerate(request.get("sample", [])):
        gr.run_sample(ref, entry, i, out, margins)
    if "train" in request and not kind.startswith("bf16"):
        gr.run_train(ref, request, out, margins)
    if routing is not None:
        routing.extend(getattr(ref, "margins", []))
    return ref.stored_names(out) if hasattr(ref, "stored_names") else out


def measure_noise(model_dir, adapter_dirs, request, truth):
    """{name: {"f32": e, "bf16": e, "bf16_peft": e}}: each kind's relative L2 distance from the truth."""
    noise = {name: {} for name in truth}
    for kind in ["f32", "bf16", "bf16_peft"]:
        if kind == "bf16_peft" and not adapter_dirs:
            continue
        got = run_request(model_dir, adapter_dirs, request, kind)
        for name, value in got.items():
            if value.shape == truth[name].shape:
                # All zero must be met exactly, whatever transformers itself does there.
                noise[name][kind] = gr.relative_l2(value, truth[name]) if truth[name].any() else 0.0
        if "loss_sum" in truth and "loss" in got:
            # One number's own error may be small by luck: take what the errors of its terms add up to.
            spread = np.abs(got["loss"] - truth["loss"]).sum() / abs(truth["loss_sum"][0])
            noise["loss_sum"][kind] = max(noise["loss_sum"][kind], float(spread))
        if kind != "f32":
            stacked = gr.joined_experts({k: got[k] for k in truth if k in got})
            for name, values in gr.joined_experts(truth).items():
                if name in stacked:
                    noise.setdefault(name, {})[kind] = gr.relative_l2(stacked[name], values)
    return noise


def is_firm(model_dir, adapter_dirs, request):
    """Whether several runs, each off by the rounding of float32, stay within the limits of the comparison.

    AdamW divides each element's gradient by its own size, so that an element which is small beside its tensor, since
    its terms cancel, takes a visible step from an error that is nothing to the tensor. The slowest pairs of a rotated
    key's bias are such: what they add to a query's scores is nearly the same for all keys. Ten steps can also drive
    a model apart from itself. transformers in float32 is one run, and may be near the truth by luck.
    """
    truth = run_request(model_dir, adapter_dirs, request, "f64")
    single = run_request(model_dir, adapter_dirs, request, "f32")
    limits = {name: compare_probe.limit_of(name, {"f32": gr.relative_l2(single[name], value)}, "f32")
              for name, value in truth.items()}
    for seed in range(3):
        got = run_request(model_dir, adapter_dirs, request, "f64", shake=seed)
        if any(gr.relative_l2(got[name], truth[name]) > limits[name] for name in truth):
            return False
    return True
