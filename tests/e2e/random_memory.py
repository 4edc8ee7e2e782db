# SPDX-License-Identifier: Apache-2.0
"""`strata train --memory` in random configurations: never exceeded, and the very adapter of the run that holds everything.

usage: random_memory.py STRATA MODEL_DIR [RUNS, 40] [SEED, 1]
MODEL_DIR lends its tokenizer. Draws small models, data, divisions into stages and memories (some of which only a file can meet),
watches the process's anonymous memory while it runs, and fails where it exceeds --memory or a byte of the adapter differs.
"""
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

MIB = 2**20
FAMILIES = ["Qwen3ForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"]
TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]


def draw_config(draw):
    family = draw.choice(FAMILIES)
    heads = draw.choice([2, 4, 8])
    config = {
        "architectures": [family],
        "model_type": {"Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama", "Qwen3MoeForCausalLM": "qwen3_moe"}[family],
        "vocab_size": 4096, "hidden_size": 64 * draw.randint(1, 6), "intermediate_size": 64 * draw.randint(2, 16),
        "num_hidden_layers": draw.randint(1, 8), "num_attention_heads": heads, "num_key_value_heads": heads // 2, "head_dim": 32,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": draw.random() < 0.5,
        "torch_dtype": draw.choice(["float32", "bfloat16"])}
    if "Moe" in family:
        config |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64 * draw.randint(1, 4),
                   "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def draw_data(draw, path):
    longest = draw.choice([40, 200, 700])
    with open(path, "w") as out:
        for _ in range(24):
            words = " ".join(draw.choice(["alpha", "beta", "memory", "plan", "seven", "disk"]) for _ in range(draw.randint(5, longest)))
            out.write(json.dumps({"text": words}) + "\n")


def draw_stages(draw, layers):
    """Options of a run in stages, or none."""
    if draw.random() < 0.5:
        return []
    schedule = draw.choice(["gpipe", "1f1b", "zb1p", "circular"])
    stages = draw.randint(1, min(3, layers))
    chunks = draw.randint(1, layers // stages) if schedule == "circular" else 1
    return ["--stages", str(stages), "--chunks", str(chunks), "--pipeline-schedule", schedule,
            "--microbatches", str(stages * draw.randint(2 if stages == 1 else 1, 3))]


def anonymous(pid):
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def train(command):
    """The JSON line, the most anonymous memory that was seen, and stderr; no line where it was refused."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
    out, err = process.communicate()
    if process.returncode != 0:
        return None, peak, err
    line = json.loads(out)
    return line, max(peak, line["peak_bytes"]), err


def main():
    strata, lender = sys.argv[1], pathlib.Path(sys.argv[2])
    runs, seed = int((sys.argv[3:] + ["40"])[0]), int((sys.argv[4:] + ["1"])[0])
    draw = random.Random(seed)
    done = refused = divided = 0
    ratios, in_files = [], 0
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        while done < runs:
            shutil.rmtree(root / "config", ignore_errors=True)
            shutil.rmtree(root / "model", ignore_errors=True)
            (root / "config").mkdir()
            for name in TOKENIZER:
                if (lender / name).exists():
                    shutil.copy(lender / name, root / "config" / name)
            config = draw_config(draw)
            (root / "config" / "config.json").write_text(json.dumps(config))
            subprocess.run([strata, "init", "--config", root / "config", "--out", root / "model", "--seed", str(draw.randint(0, 9999))],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            draw_data(draw, root / "data.jsonl")
            command = [strata, "train", "--model", root / "model", "--data", root / "data.jsonl", "--steps", "3", "--json",
                       "--rank", str(draw.choice([1, 4, 16])), "--method", draw.choice(["lora", "lora", "full"]),
                       "--batch-tokens", str(draw.choice([512, 4096])), "--max-length", "2048"]
            shutil.rmtree(root / "whole", ignore_errors=True)
            whole, _, err = train([*command, "--out", root / "whole"])
            assert whole, err
            result = next(name for name in ("adapter_model.safetensors", "model.safetensors") if (root / "whole" / name).exists())
            wanted = (root / "whole" / result).read_bytes()
            stages = draw_stages(draw, config["num_hidden_layers"])
            if stages:
                command += stages
                shutil.rmtree(root / "less", ignore_errors=True)
                whole, _, err = train([*command, "--out", root / "less"])
                assert whole and (root / "less" / result).read_bytes() == wanted, err
                assert whole["peak_bytes"] <= whole["planned_bytes"], (whole, command, config)
                divided += 1
            for share in sorted(draw.uniform(0.35, 1.05) for _ in range(4)):
                memory = int(whole["planned_bytes"] * share)
                shutil.rmtree(root / "less", ignore_errors=True)
                less, peak, err = train([*command, "--out", root / "less", "--memory", str(memory)]
                                        + (["--offload", root] if draw.random() < 0.3 else []))
                if not less:
                    assert "--memory" in err, err
                    refused += 1
                    continue
                planned = less["planned_bytes"]
                assert planned <= memory, (less, memory, config)
                assert peak <= planned, f"{peak} bytes of {planned} within {memory}: {' '.join(map(str, command))}, {config}, seed {seed}"
                assert (root / "less" / result).read_bytes() == wanted, f"other bits: {command} --memory {memory}, {config}"
                ratios.append(peak / planned)
                in_files += "in files" in err or "apart from that" in err
                done += 1
    ratios.sort()
    print(f"{done} runs within --memory ({in_files} with files, {refused} refused; {divided} models in stages): anonymous memory at its peak over the plan "
          f"{ratios[0]:.3f} to {ratios[-1]:.3f}, median {ratios[len(ratios) // 2]:.3f}; every result the same bytes")


if __name__ == "__main__":
    main()
