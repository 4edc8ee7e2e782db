# SPDX-License-Identifier: Apache-2.0
"""Edges of config.json and of files for random_models.py: what files of other programs say in another way, leave out
or contradict, and what transformers makes of it.

An edge fits some specs of make_golden.py, and may change a spec before its model is made, or the case afterwards.
"""
import numpy as np

PLAIN = ("llama", "qwen2", "qwen3", "mistral", "qwen3_moe")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}


def text_of(case):
    return case["config"].get("text_config", case["config"])


def is_flat(case):
    """A model by itself, whose rope settings are one object."""
    return "rope_parameters" in case["config"]


def set_rope(case, **settings):
    """Replaces the scaling, in whichever form the file has it."""
    config = case["config"]
    if is_flat(case):
        config["rope_parameters"] = {"rope_theta": config["rope_parameters"].get("rope_theta", 1e4), **settings}
    else:
        config["rope_scaling"] = settings


def head_rows(case):
    """(file, row of the embedding, name of the head) of a case."""
    for file, rows in case["files"].items():
        for row in rows:
            if row[0].endswith("embed_tokens.weight"):
                old = row[0].startswith("language_model.model.")
                return file, row, "language_model.lm_head.weight" if old else "lm_head.weight"
    raise AssertionError("no embedding")


def add_head(case, differs):
    file, row, name = head_rows(case)
    if any(r[0] == name for rows in case["files"].values() for r in rows):
        return
    extra = [name, row[1], row[2], *([0, row[4]] if differs else [None, row[0]])]
    case["files"][file].append(extra)


class Edge:
    def __init__(self, name, fits, change_spec=None, change_case=None, often=0.25):
        self.name, self.fits, self.often = name, fits, often
        self.change_spec = change_spec or (lambda spec: None)
        self.change_case = change_case or (lambda case: None)


def is_plain(spec):
    return spec["family"] in PLAIN


def is_tied(spec):
    return spec["config"].get("tie_word_embeddings", spec["family"] == "gemma3") and spec["family"] != "deepseek_v4"


def is_inside(spec):
    """The text model of a multimodal checkpoint, named as transformers 5 can write it."""
    return is_tied(spec) and spec.get("form") == "language_model"


def has_full_heads(spec):
    return (spec["family"] in ("llama", "qwen2", "qwen3")
            and spec["config"].get("num_key_value_heads") == spec["config"].get("num_attention_heads"))


def has_routed_experts(spec):
    """A DeepSeek-V3 or GLM one of whose layers is not dense."""
    config = spec["config"]
    return (spec["family"] == "deepseek_v3" and config["first_k_dense_replace"] < config["num_hidden_layers"]
            or spec["family"] == "glm4_moe_lite" and "sparse" in config["mlp_layer_types"])


def has_full_layers(spec):
    """A gemma3 with a layer of full attention, whose heads have a few pairs."""
    config = spec["config"]
    return spec["family"] == "gemma3" and config["num_hidden_layers"] >= config["pattern"] and config["head_dim"] >= 8


def short_yarn(spec):
    # The longest sequence goes far beyond the original length, and a head has a few pairs.
    return is_plain(spec) and spec["config"].get("head_dim", 0) >= 8


def window_of(layers):
    def change(case):
        case["config"].update(use_sliding_window=True, sliding_window=5, max_window_layers=layers)
        case["config"].pop("layer_types", None)
    return change


def drop_rope_of(kind):
    def change(case):
        parameters = text_of(case).get("rope_parameters") or {}
        parameters.pop(kind, None)
    return change


def outer_length(case):
    set_rope(case, **YARN)
    case["config"]["original_max_position_embeddings"] = 900


def random_yarn(case):
    """Any of its keys, as number, null or left out."""
    rng = np.random.default_rng([case["seed"], 7])
    values = {"factor": [1.0, 2.5, 8.0, 40.0], "original_max_position_embeddings": [5, 24, 100, 4096, LEFT_OUT],
              "mscale": [0.0, 0.7, 1.3, None, LEFT_OUT], "mscale_all_dim": [0.0, 0.6, 1.0, None, LEFT_OUT],
              "attention_factor": [0.5, 1.2, None, LEFT_OUT, LEFT_OUT, LEFT_OUT], "beta_fast": [8, 32.0, None, LEFT_OUT],
              "beta_slow": [0.5, 1, None, LEFT_OUT], "truncate": [True, False, LEFT_OUT]}
    drawn = {key: choices[int(rng.integers(len(choices)))] for key, choices in values.items()}
    set_rope(case, rope_type="yarn", **{k: v for k, v in drawn.items() if v is not LEFT_OUT})


def leave_out_defaults(case):
    """Keys that say what their absence says, as files on the hub do."""
    from transformers import CONFIG_MAPPING
    text = text_of(case)
    defaults = CONFIG_MAPPING[text["model_type"]]().to_dict()
    for key in [k for k, v in text.items() if k not in ("model_type", "architectures") and k in defaults and defaults[k] == v]:
        del text[key]


def mix_types(case):
    rng = np.random.default_rng([case["seed"], 8])
    for rows in case["files"].values():
        for row in rows:
            if row[1] in ("F32", "BF16", "F16") and row[3] is not None:
                row[1] = str(rng.choice(["F32", "BF16", "F16"]))


def rename_experts(case):
    text = text_of(case)
    for one, other in (("num_experts", "num_local_experts"), ("num_local_experts", "num_experts")):
        if one in text:
            text[other] = text.pop(one)
            return


def make_thin(spec):
    """Widths of one, and a vocabulary that a vector holds."""
    for key in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"):
        if key in spec["config"]:
            spec["config"][key] = 1
    spec["config"]["vocab_size"] = 13


def odd_theta(case):
    """A whole number, small or huge."""
    config, theta = case["config"], [2, 77, 3000000000][case["seed"] % 3]
    if is_flat(case):
        config["rope_parameters"]["rope_theta"] = theta
    else:
        config["rope_theta"] = theta


def add_old_buffers(case):
    """Frequencies, which older files hold."""
    file, row, _ = head_rows(case)
    prefix = row[0].removesuffix("embed_tokens.weight")
    case["files"][file].append([prefix + "layers.0.self_attn.rotary_emb.inv_freq", "F32", [4], 100, 10])


def other_local_experts(case):
    """Under a name that transformers does not know in this family."""
    text_of(case)["num_local_experts"] = text_of(case)["num_experts"] + 3


NESTED_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40, "beta_fast": 3.0, "beta_slow": 0.5}


def nested_yarn(inside, outside):
    """gemma3's settings by kind of layer, with `truncate` false in the one and beside both."""
    def change(case):
        for key in ("rope_scaling", "rope_theta", "rope_local_base_freq"):
            text_of(case).pop(key, None)
        text_of(case)["rope_parameters"] = {
            "full_attention": {**NESTED_YARN, "rope_theta": 20.0, **({"truncate": False} if inside else {})},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}, **({"truncate": False} if outside else {})}
    return change


def compress_yarn(case):
    """DeepSeek-V4's one scaling, whose `truncate` transformers does not read."""
    case["config"].pop("rope_scaling", None)
    case["config"].update(compress_rope_theta=20.0, rope_parameters={**NESTED_YARN, "truncate": False})


def null_factor(case):
    set_rope(case, **{**YARN, "factor": None})
    case["config"]["max_position_embeddings"] = 150


LEFT_OUT = object()
EDGES = [
    Edge("swish", lambda s: s["family"] not in ("gemma", "gemma2", "gemma3"), change_case=lambda c: text_of(c).update(hidden_act="swish"), often=0.2),
    Edge("gelu_python_tanh", lambda s: s["family"] == "gemma3",
         change_case=lambda c: text_of(c).update(hidden_activation="gelu_python_tanh")),
    Edge("null_kv_heads", has_full_heads, change_case=lambda c: c["config"].update(num_key_value_heads=None), often=0.5),
    Edge("linear", is_plain, change_case=lambda c: set_rope(c, rope_type="linear", factor=3.0), often=0.1),
    Edge("yarn", short_yarn, change_case=lambda c: set_rope(c, **YARN), often=0.15),
    Edge("yarn_finetuned", short_yarn, change_case=lambda c: set_rope(c, **YARN, finetuned=True), often=0.08),
    Edge("yarn_attention_factor", short_yarn, change_case=lambda c: set_rope(c, **YARN, attention_factor=0.7), often=0.08),
    Edge("yarn_attention_factor_0", short_yarn, change_case=lambda c: set_rope(c, **YARN, attention_factor=0.0), often=0.05),
    Edge("yarn_ends", short_yarn, change_case=lambda c: set_rope(c, **YARN, truncate=False, beta_fast=8, beta_slow=2), often=0.08),
    Edge("yarn_random", is_plain, change_case=random_yarn, often=0.25),
    Edge("outer_length", short_yarn, change_case=outer_length, often=0.1),
    Edge("llama3_without_length", short_yarn, change_case=lambda c: (
        set_rope(c, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
        c["config"].update(max_position_embeddings=40)), often=0.08),
    Edge("window_of_all", lambda s: s["family"] in ("qwen3", "qwen3_moe"), change_case=window_of(0), often=0.2),
    Edge("window_of_last", lambda s: s["family"] == "qwen3", change_case=window_of(1), often=0.2),
    Edge("no_local_rope", lambda s: s["family"] == "gemma3", change_case=drop_rope_of("sliding_attention")),
    Edge("no_global_rope", lambda s: s["family"] == "gemma3", change_case=drop_rope_of("full_attention"), often=0.1),
    Edge("own_head", is_tied, change_case=lambda c: add_head(c, differs=True), often=0.3),
    Edge("own_head_inside", is_inside, change_case=lambda c: add_head(c, differs=True), often=0.2),
    Edge("head_again_inside", is_inside, change_case=lambda c: add_head(c, differs=False), often=0.2),
    Edge("head_again", is_tied, change_case=lambda c: add_head(c, differs=False), often=0.2),
    Edge("no_shared_experts", has_routed_experts,
         change_spec=lambda s: (s["config"].update(n_shared_experts=0), s.update(adapters=[])), often=0.2),
    # Two thirds of a width of 1 are none.
    Edge("thinnest", lambda s: not s["config"].get("block_auto_adjust_ff_dim"), change_spec=make_thin, often=0.1),
    Edge("large_eps", lambda s: True, often=0.1,
         change_spec=lambda s: s["config"].update({"norm_eps" if s["family"] == "lfm2" else "rms_norm_eps": 0.03})),
    Edge("odd_theta", is_plain, change_case=odd_theta, often=0.15),
    Edge("left_out", lambda s: True, change_case=leave_out_defaults, often=0.3),
    Edge("mixed_types", lambda s: True, change_case=mix_types, often=0.15),
    Edge("other_name_of_experts", lambda s: s["family"] == "qwen3_moe", change_case=rename_experts),
    Edge("old_buffers", lambda s: s["family"] in ("llama", "mistral", "qwen2"), change_case=add_old_buffers, often=0.2),
    Edge("odd_key_heads", lambda s: s["family"].startswith("qwen3_5"),
         change_spec=lambda s: s["config"].update(linear_key_head_dim=5, linear_value_head_dim=7), often=0.3),
    Edge("truncate_inside", has_full_layers, change_case=nested_yarn(True, False), often=0.1),
    Edge("truncate_beside", has_full_layers, change_case=nested_yarn(False, True), often=0.1),
    Edge("truncate_of_v4", lambda s: s["family"] == "deepseek_v4", change_case=compress_yarn, often=0.2),
    Edge("other_local_experts", lambda s: s["family"] == "qwen3_5_moe", change_case=other_local_experts),
    Edge("null_factor", short_yarn, change_case=null_factor, often=0.1),
    Edge("small_factor", is_plain, change_case=lambda c: set_rope(c, rope_type="linear", factor=0.4), often=0.05),
]


def draw_edges(seed, spec):
    """Those that a seed gives to a spec; each asks a stream of its own, so that one may be left out."""
    found = []
    for index, edge in enumerate(EDGES):
        if edge.fits(spec) and np.random.default_rng([seed, 1000 + index]).random() < edge.often:
            found.append(edge)
    return found


def named_cases(draw_case):
    """(name, case) of each edge by itself, on the first random model that it fits; draw_case gives None for what is none."""
    names = [edge.name for edge in EDGES]
    for edge in EDGES:
        for family in sorted({"own_head": ["gemma3", "qwen3"], "window_of_all": ["qwen3", "qwen3_moe"]}.get(edge.name, [None]), key=str):
            yield from first_case(edge, family, names, draw_case)


def first_case(edge, family, names, draw_case):
    families = [family] if family else ["qwen3", "llama", "gemma3", "deepseek_v3", "qwen3_5", "qwen3_moe", "qwen3_5_moe",
                                        "deepseek_v4"]
    others = [n for n in names if n != edge.name]
    for seed in range(1, 400):
        for candidate in families:
            case = draw_case(seed, candidate, ["adapters", "dtype", *others])
            if case and edge.name in case["edges"]:
                yield f"edge_{edge.name}_{candidate}", case
                return
