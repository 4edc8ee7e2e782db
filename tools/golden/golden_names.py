# SPDX-License-Identifier: Apache-2.0
"""Names of parameters in files that transformers has under others in memory: Mixtral's and GraniteMoE's experts."""

# Names in files, from those of modules in memory.
MIXTRAL = [(".mlp.gate.", ".block_sparse_moe.gate."), (".mlp.experts.", ".block_sparse_moe.experts."),
           (".gate_proj.", ".w1."), (".up_proj.", ".w3."), (".down_proj.", ".w2.")]
GRANITEMOE = [("block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight"),
              ("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
              ("block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight")]


def name_in_file(name, stored):
    """Of an output of a parameter, "param_grad.NAME", the name that the files have. stored: all names in them."""
    is_mixtral = any(".block_sparse_moe.experts." in n for n in stored)
    is_granitemoe = any(".block_sparse_moe.input_linear." in n for n in stored)
    if not name.startswith("param_") or not (is_mixtral or is_granitemoe):
        return name
    for old, new in MIXTRAL if is_mixtral else GRANITEMOE:
        name = name.replace(old, new)
    return name
