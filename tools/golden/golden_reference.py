# SPDX-License-Identifier: Apache-2.0
"""The reference side of a golden: a model with its adapters in transformers and PEFT, code that is not ours, and the
parts of a probe request. golden_run.py runs whole requests. Kinds of a reference:
  f64         float64 with every explicit float32 cast of the modelling code lifted: the truth
  f32         transformers as it is, in float32: its distance from f64 is the noise of a right answer
  bf16        transformers and PEFT in bfloat16, adapters in bfloat16 too
  bf16_peft   the same with PEFT's default, adapters kept in float32 on a bfloat16 base
Every sequence runs alone with its adapter active, so nothing is padded or masked here.
"""
import importlib
import json
import os
import re
import sys
import tempfile
import types

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors import safe_open

import golden_gemma3

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "bf16_peft": torch.bfloat16}
# Two units in the last place of float32. A float64 run's gradients then are three times as far from the truth as those
# of transformers in float32 (the median over random models), which is as far as a right program may well be.
SHAKE = 2.4e-7
# Modules in adapters made on a multimodal model, and on its text model alone.
WHOLE_TO_TEXT = ("base_model.model.model.language_model.", "base_model.model.model.")
LOSS_DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


def lift_source(text):
    """Turns each explicit float32 in modelling code into float64."""
    text = re.sub(r"\btorch\.float32\b", "torch.float64", text)
    text = re.sub(r"\btorch\.float\b", "torch.float64", text)
    return text.replace(".float()", ".double()")


def lifted_module(name, replace=()):
    """A copy of an installed module, compiled from its source with lift_source applied."""
    alias = name + "_lifted"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.find_spec(name)
    with open(spec.origin, encoding="utf-8") as f:
        text = lift_source(f.read())
    module = types.ModuleType(alias)
    module.__package__ = name.rsplit(".", 1)[0]
    module.__file__ = spec.origin
    sys.modules[alias] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    for key, value in replace:
        assert key in module.__dict__, (name, key)
        module.__dict__[key] = value
    return module


class LiftedParts:
    """AutoModel for the parts of a multimodal model: the text model from the lifted module."""

    def __init__(self, module):
        self.module = module

    def from_config(self, config):
        from transformers import AutoModel
        name = {"gemma3_text": "Gemma3TextModel", "gemma4_text": "Gemma4TextModel"}.get(config.model_type)
        return getattr(self.module, name)(config) if name else AutoModel.from_config(config)


def is_whole_adapter(folder):
    from safetensors import safe_open
    with safe_open(os.path.join(folder, "adapter_model.safetensors"), "pt") as f:
        return any(key.startswith(WHOLE_TO_TEXT[0]) for key in f.keys())


def rename_adapter(folder, target):
    """Writes an adapter made on a multimodal model as one of its text model."""
    from safetensors.torch import load_file, save_file
    name = "adapter_model.safetensors"
    tensors = load_file(os.path.join(folder, name))
    save_file({k.replace(*WHOLE_TO_TEXT): v for k, v in tensors.items()}, os.path.join(target, name), metadata={"format": "pt"})
    with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(target, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


def stored_prefix(model_dir):
    """What a checkpoint has before the names of its text part's layers."""
    for name in sorted(os.listdir(model_dir)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(model_dir, name), "pt") as f:
                for key in f.keys():
                    for prefix in ("language_model.model.", "model.language_model."):
                        if key.startswith(prefix):
                            return prefix
    return "model."


def load_lifted(model_dir, config):
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    rope = lifted_module("transformers.modeling_rope_utils")
    name = type(config).__module__.replace("configuration_", "modeling_")
    module = lifted_module(name, [("ROPE_INIT_FUNCTIONS", rope.ROPE_INIT_FUNCTIONS)])
    if hasattr(module, "AutoModel"):
        module.AutoModel = LiftedParts(module)
    cls = getattr(module, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])
    model = cls.from_pretrained(model_dir, dtype=torch.float64, attn_implementation="eager")
    for name, part in model.named_modules():
        if hasattr(part, "embed_scale"):
            layers = model.config.get_text_config().num_hidden_layers if name.endswith("embed_tokens_per_layer") else 1
            assert part.embed_scale.item() == (part.embedding_dim / layers) ** 0.5
        if isinstance(getattr(part, "rope_type", None), dict):  # one table for each type of layer
            for kind, rope_type in part.rope_type.items():
                init = part.compute_default_rope_parameters if rope_type == "default" else rope.ROPE_INIT_FUNCTIONS[rope_type]
                by_layer = getattr(part.config, "per_layer_config", None)  # heads of other widths
                table, scaling = init(by_layer[kind] if by_layer else part.config, layer_type=kind)
                assert table.dtype == torch.float64
                setattr(part, f"{kind}_inv_freq", table)
                setattr(part, f"{kind}_attention_scaling", scaling)
        if hasattr(part, "inv_freq"):
            # Loading fills the buffer from the unlifted code; compute it again in double.
            init = part.compute_default_rope_parameters
            if part.rope_type != "default":
                init = rope.ROPE_INIT_FUNCTIONS[part.rope_type]
            part.inv_freq, part.attention_scaling = init(part.config)
            assert part.inv_freq.dtype == torch.float64
    return model


def text_model(model):
    """The decoder: of a multimodal model its text part."""
    return getattr(model.model, "language_model", model.model)


def final_norm(model):
    text = text_model(model)
    return getattr(text, "norm", None) or text.embedding_norm


class Reference:
    """A base model with its adapters, loaded in one of the kinds above."""

    unshaken = ()  # parts of the names of modules that shake leaves as they are

    def __init__(self, model_dir, adapter_dirs, kind):
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging
        logging.disable_progress_bar()
        self.kind = kind
        dtype = DTYPES[kind]
        config = AutoConfig.from_pretrained(model_dir)
        if kind == "f64":
            base = load_lifted(model_dir, config)
        else:
            # Of a capped score eager attention alone knows.
            eager = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}
            base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, **eager)
        for name in ("embed_tokens", "embed_tokens_per_layer"):
            if hasattr(text_model(base), name):
                getattr(text_model(base), name).padding_idx = None  # whose row would have no gradient
        self.num_layers = config.get_text_config().num_hidden_layers
        self.prefix = stored_prefix(model_dir)
        self.base = base
        self.peft = None
        self.num_adapters = len(adapter_dirs)
        self.whole_adapters = set()
        for i, folder in enumerate(adapter_dirs):
            self._add_adapter(folder, i + 1)
        self.base_params = {}
        self.adapter_params = {k + 1: {} for k in range(self.num_adapters)}
        self._name_parameters()
        want = torch.float64 if kind == "f64" else None
        for value in self.base_params.values():
            assert want is None or value.dtype == want
        for params in self.adapter_params.values():
            for name, value in params.items():
                assert want is None or value.dtype == want, name
        base.eval()
        final_norm(base).register_forward_hook(lambda _, __, y: setattr(self, "normed", y[0]))

    def _add_adapter(self, folder, index):
        if type(text_model(self.base)) is type(self.base.model) and is_whole_adapter(folder):
            self.whole_adapters.add(index)
            with tempfile.TemporaryDirectory() as renamed:
                rename_adapter(folder, renamed)
                self._load_adapter(renamed, index)
        else:
            self._load_adapter(folder, index)

    def _load_adapter(self, folder, index):
        from peft import PeftModel
        keep = self.kind == "bf16_peft"
        name = f"adapter{index}"
        if self.peft is None:
            self.peft = PeftModel.from_pretrained(self.base, folder, adapter_name=name,
                                                  is_trainable=True, autocast_adapter_dtype=keep)
        else:
            self.peft.load_adapter(folder, name, is_trainable=True, autocast_adapter_dtype=keep)

    def stored_name(self, name):
        """The name in the checkpoint of a base parameter."""
        return re.sub(r"^model\.(language_model\.)?", self.prefix, name)

    def _name_parameters(self):
        owner = self.peft if self.peft is not None else self.base
        for name, value in owner.named_parameters():
            found = re.search(r"\.(lora_[A-Za-z_]+)\.adapter(\d+)(\.weight)?$", name)
            if found:
                stored = name[: found.start()] + "." + found.group(1) + (found.group(3) or "")
                if int(found.group(2)) in self.whole_adapters:
                    stored = stored.replace(*reversed(WHOLE_TO_TEXT))
                self.adapter_params[int(found.group(2))][stored] = value
            else:
                stored = name.removeprefix("base_model.model.") if self.peft is not None else name
                if golden_gemma3.is_ignored(stored):
                    value.requires_grad_(False)
                    continue
                self.base_params[self.stored_name(stored.replace(".base_layer.", "."))] = value
            value.requires_grad_(True)

    def activate(self, adapter):
        if self.peft is not None:
            if adapter == 0:
                self.peft.base_model.disable_adapter_layers()
            else:
                self.peft.base_model.enable_adapter_layers()
                self.peft.set_adapter(f"adapter{adapter}")
            # PEFT freezes what is not active; gradients of all are asked for here.
            for params in [self.base_params, *self.adapter_params.values()]:
                for value in params.values():
                    value.requires_grad_(True)

    def forward(self, tokens, adapter):
        """(hidden states [L+1, n, D], logits [n, V]) of one sequence."""
        self.activate(adapter)
        model = self.peft if self.peft is not None else self.base
        ids = torch.tensor([tokens])
        out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
        hidden = [h[0] for h in out.hidden_states]
        if self.num_layers == 0:
            hidden = [self.normed]  # transformers returns an empty tuple here
        assert len(hidden) == self.num_layers + 1, len(hidden)
        return torch.stack(hidden), out.logits[0]

    def shake(self, seed):
        """From now on linear modules, norms and embeddings have outputs, and gradients of these, that are off by SHAKE."""
        gen = torch.Generator().manual_seed(seed)
        off = lambda x: x * (1 + SHAKE * torch.randn(x.shape, generator=gen, dtype=x.dtype))
        for name, part in self.base.named_modules():
            if any(path in name for path in self.unshaken):
                continue
            if isinstance(part, (torch.nn.Linear, torch.nn.Embedding)) or type(part).__name__.endswith("Norm"):
                part.register_forward_hook(lambda _, __, y: off(y))
                part.register_full_backward_pre_hook(lambda _, grads: tuple(off(g) for g in grads))

    def zero_grad(self):
        for params in [self.base_params, *self.adapter_params.values()]:
            for value in params.values():
                value.grad = None


def as_numbers(values, dtype):
    """Request numbers: rounded to float32 first, as the contract says, then widened."""
    with np.errstate(over="ignore"):
        return torch.tensor(np.array(values, np.float64).astype(np.float32)).to(dtype)


def token_losses(name, config, lp, weights, seq, keep):
    if name == "cross_entropy":
        return -weights * lp
    q = as_numbers(seq["logprobs"], lp.dtype)[keep]
    advantage = as_numbers(seq["advantages"], lp.dtype)[keep]
    ratio = torch.exp(lp - q)
    if name == "importance_sampling":
        return -weights * ratio * advantage
    low, high = (float(np.float32(config.get(k, v))) for k, v in LOSS_DEFAULTS.items())
    clipped = ratio.clamp(low, high)
    if name == "ppo":
        return -weights * torch.minimum(ratio * advantage, clipped * advantage)
    assert name == "cispo", name
    return -weights * clipped.detach() * advantage * lp


def sequence_loss(request, seq, logits):
    """(logprobs [n], losses [n]); zero, with no path for a gradient, where the weight is zero."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    n = len(seq["tokens"])
    weights = as_numbers(seq.get("weights", [1.0] * n), wide.dtype)
    keep = torch.nonzero(weights != 0).flatten()
    loss = seq.get("loss", request.get("loss", {"name": "cross_entropy"}))
    targets = torch.tensor(seq["targets"])[keep]
    lp = torch.log_softmax(wide[keep], -1).gather(1, targets[:, None])[:, 0]
    values = token_losses(loss["name"], loss.get("config", {}), lp, weights[keep], seq, keep)
    zeros = torch.zeros(n, dtype=wide.dtype)
    return zeros.index_copy(0, keep, lp), zeros.index_copy(0, keep, values)


def to_numpy(tensor):
    return tensor.detach().to(torch.float64).numpy()


def gradients(params):
    return {name: to_numpy(p.grad) if p.grad is not None else np.zeros(p.shape)
            for name, p in params.items()}


def run_wants(ref, request, out):
    wants = set(request.get("want", []))
    if not wants:
        return
    need_grad = bool(wants & {"adapter_grads", "param_grads"})
    need_loss = bool(wants - {"hidden_states", "logits"})
    parts = {"hidden_states": [], "logits": [], "logprobs": [], "loss": []}
    finals = []
    ref.zero_grad()
    for seq in request["sequences"]:
        with torch.set_grad_enabled(need_grad):
            hidden, logits = ref.forward(seq["tokens"], seq.get("adapter", 0))
        parts["hidden_states"].append(to_numpy(hidden))
        if hasattr(ref, "final_hidden"):  # where the hidden states are streams
            finals.append(to_numpy(ref.final_hidden))
        parts["logits"].append(to_numpy(logits))
        if need_loss:
            lp, loss = sequence_loss(request, seq, logits)
            parts["logprobs"].append(to_numpy(lp))
            parts["loss"].append(to_numpy(loss))
            if need_grad and loss.requires_grad:
                loss.sum().backward()
    for name in wants & set(parts):
        out[name] = np.concatenate(parts[name], axis=1 if name == "hidden_states" else 0)
    if "hidden_states" in wants and finals:
        out["final_hidden"] = np.concatenate(finals)
    if "loss" in wants:
        out["loss_sum"] = out["loss"].sum(keepdims=True)
    if "adapter_grads" in wants:
        for k, params in ref.adapter_params.items():
            out.update({f"adapter_grad.{k}.{n}": g for n, g in gradients(params).items()})
    if "param_grads" in wants:
        out.update({f"param_grad.{n}": g for n, g in gradients(ref.base_params).items()})
    ref.zero_grad()


def smallest_gradient(models):
    """The smallest gradient element that is not zero, over the root mean square of its tensor.

    AdamW's first step is lr times the sign of the gradient: an element within rounding error of zero
    goes either way, and no comparison after it means anything.
    """
    least = float("inf")
    for params in models.values():
        for value in params.values():
            if value.grad is None:
                continue
            grad = value.grad[value.grad != 0].abs()
            if grad.numel():
                least = min(least, (grad.min() / grad.pow(2).mean().sqrt()).item())
    return least


def run_train(ref, request, out, margins):
    """torch's AdamW, one optimizer for each model that is trained; the clip rule is the contract's."""
    train = request["train"]
    if train["what"] == "adapters":
        used = sorted({s.get("adapter", 0) for s in request["sequences"]} - {0})
        models = {k: ref.adapter_params[k] for k in used}
    else:
        models = {0: ref.base_params}
    optimizers = {k: torch.optim.AdamW(
        list(p.values()), lr=train["lr"], betas=(train.get("beta1", 0.9), train.get("beta2", 0.95)),
        eps=train.get("eps", 1e-12), weight_decay=train.get("weight_decay", 0.0), foreach=False)
        for k, p in models.items()}
    losses, norms = [], []
    for _ in range(train["steps"]):
        ref.zero_grad()
        total = 0.0
        for seq in request["sequences"]:
            _, logits = ref.forward(seq["tokens"], seq.get("adapter", 0))
            loss = sequence_loss(request, seq, logits)[1].sum()
            total += loss.item()
            if loss.requires_grad:
                loss.backward()
        losses.append(total)
        if len(losses) == 1:
            margins.append(smallest_gradient(models))
        row = {}
        for k, params in models.items():
            for value in params.values():
                if value.grad is None:
                    value.grad = torch.zeros_like(value)
            norm = sum((p.grad.double() ** 2).sum().item() for p in params.values()) ** 0.5
            row[k] = norm
            clip = train.get("grad_clip_norm", 0.0)
            if clip > 0 and norm > clip:
                for value in params.values():
                    value.grad.mul_(clip / norm)
            optimizers[k].step()
        if train["what"] == "adapters":
            norms.append([row.get(k + 1, 0.0) for k in range(ref.num_adapters)])
        else:
            norms.append(row[0])
    out["train.loss"] = np.array(losses)
    out["train.grad_norm"] = np.array(norms)
    if train["what"] == "adapters":
        for k, params in ref.adapter_params.items():
            out.update({f"adapter_final.{k}.{n}": to_numpy(p) for n, p in params.items()})
    else:
        out.update({f"param_final.{n}": to_numpy(p) for n, p in ref.base_params.items()})


@torch.no_grad()
def run_sample(ref, entry, index, out, margins):
    """Greedy only: an entry whose settings leave more than the argmax has no single right answer."""
    assert entry.get("temperature", 1) == 0 or entry.get("top_k") == 1 or entry.get("top_p", 1) < 1e-5
    tokens = list(entry["tokens"])
    chosen, logprobs, stopped = [], [], 0.0
    while len(chosen) < entry["max_tokens"] and not stopped:
        logits = ref.forward(tokens, entry.get("adapter", 0))[1][-1].double()
        best = torch.topk(logits, 2)
        margins.append((best.values[0] - best.values[1]).item())
        token = best.indices[0].item()
        chosen.append(token)
        logprobs.append(torch.log_softmax(logits, -1)[token].item())
        tokens.append(token)
        stopped = float(token in entry.get("stop", []))
    name = f"sample.{index}."
    out[name + "tokens"] = np.array(chosen, np.float64)
    out[name + "logprobs"] = np.array(logprobs)
    out[name + "stop"] = np.array([stopped])
    k = entry.get("topk_prompt_logprobs", 0)
    if entry.get("prompt_logprobs", False) or k > 0:
        prompt = entry["tokens"]
        table = torch.log_softmax(ref.forward(prompt, entry.get("adapter", 0))[1].double(), -1)
        out[name + "prompt_logprobs"] = np.array(
            [0.0] + [table[t - 1, prompt[t]].item() for t in range(1, len(prompt))])
    if k > 0:
        best = torch.topk(table[:-1], k + 1)
        if len(prompt) > 1:
            margins.append((best.values[:, :-1] - best.values[:, 1:]).min().item())
        zeros = np.zeros((1, k))
        out[name + "topk_ids"] = np.concatenate([zeros, best.indices[:, :k].double().numpy()])
        out[name + "topk_logprobs"] = np.concatenate([zeros, best.values[:, :k].numpy()])


def relative_l2(got, want):
    """|got - want| / |want|; 0 when both are all zero, infinity when only want is."""
    scale = np.linalg.norm(np.asarray(want, np.float64).ravel())
    error = np.linalg.norm((np.asarray(got, np.float64) - np.asarray(want, np.float64)).ravel())
    if scale == 0:
        return 0.0 if error == 0 else float("inf")
    return float(error / scale)


def joined_experts(tensors):
    """{name with * for the expert: tensor of all experts of a layer}.

    Few tokens reach one expert, so that its error in bfloat16 is small or large by luck: all of a layer are compared as
    one tensor, as they are where a file holds them as one.
    """
    groups = {}
    for name, value in tensors.items():
        found = re.match(r"(.*\.experts)\.(\d+)\.(.*)$", name)
        if found:
            groups.setdefault(f"{found.group(1)}.*.{found.group(3)}", []).append(value)
    return {name: np.stack(values) for name, values in groups.items()}


def save_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f)
        f.write("\n")
