# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes the bundled model through the official Tinker SDK: loss before and after, answers before and after.

usage: tinker_client.py URL [MODEL_NAME]     (TINKER_API_KEY holds the key; any tml- text where the server runs without keys)
"""
import json
import os
import pathlib
import random
import sys
import warnings

warnings.simplefilter("ignore", FutureWarning)
os.environ.setdefault("TINKER_API_KEY", "tml-this-server-runs-without-keys")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import tinker  # noqa: E402
from tinker import types  # noqa: E402

HERE = pathlib.Path(__file__).parent
QUESTIONS = ["What is 7 plus 5?", "What does a cow say?", "What is the opposite of hot?"]
END = "<|im_end|>"
STEPS, BATCH = 60, 16


def prompt_text(question):
    return f"<|im_start|>user\n{question}{END}\n<|im_start|>assistant\n"


def datum(tokenizer, chat):
    """One example: the loss counts the answer and its end, not the question."""
    question, answer = (message["content"] for message in chat["messages"])
    prompt = tokenizer.encode(prompt_text(question), add_special_tokens=False)
    tokens = prompt + tokenizer.encode(answer + END, add_special_tokens=False)
    n = len(tokens) - 1
    weights = [0.0] * (len(prompt) - 1) + [1.0] * (n - len(prompt) + 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[n]),
                        "weights": types.TensorData(data=weights, dtype="float32", shape=[n])})


def read(tokenizer, name):
    return [datum(tokenizer, json.loads(line)) for line in (HERE / name).read_text().splitlines()]


def num_targets(data):
    return sum(sum(d.loss_fn_inputs["weights"].data) for d in data)


def held_out_loss(client, data):
    return client.forward(data, "cross_entropy").result().metrics["loss:sum"] / num_targets(data)


def show_answers(heading, client, tokenizer):
    print(heading)
    sampler = client.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=40, temperature=0.0, stop=[tokenizer.convert_tokens_to_ids(END)])
    for question in QUESTIONS:
        prompt = types.ModelInput.from_ints(tokenizer.encode(prompt_text(question), add_special_tokens=False))
        tokens = sampler.sample(prompt=prompt, num_samples=1, sampling_params=params).result().sequences[0].tokens
        print(f"  {question:30} {tokenizer.decode(tokens, skip_special_tokens=True).strip()}")


def main():
    url = sys.argv[1]
    model = sys.argv[2] if len(sys.argv) > 2 else "tiny"
    service = tinker.ServiceClient(base_url=url)
    client = service.create_lora_training_client(base_model=model, rank=16, seed=1).result()
    tokenizer = client.get_tokenizer()
    train, held_out = read(tokenizer, "answers.jsonl"), read(tokenizer, "answers_heldout.jsonl")

    show_answers("Before:", client, tokenizer)
    before = held_out_loss(client, held_out)
    order = random.Random(0)
    pending = []
    for step in range(STEPS):
        batch = order.sample(train, BATCH)
        forward = client.forward_backward(batch, "cross_entropy")
        pending.append((step, num_targets(batch), forward, client.optim_step(types.AdamParams(learning_rate=2e-3))))
        if len(pending) < 4 and step + 1 < STEPS:
            continue  # the next step is on its way while this one runs
        for number, count, forward, update in pending:
            loss = forward.result().metrics["loss:sum"] / count
            update.result()
            if number % 10 == 0 or number + 1 == STEPS:
                print(f"step {number:3}  loss {loss:.3f}", flush=True)
        pending = []
    after = held_out_loss(client, held_out)
    path = client.save_state("answers").result().path
    show_answers("After:", client, tokenizer)
    fall = 100 * (1 - after / before)
    print(f"Held-out loss: {before:.3f} -> {after:.3f} nats per token, {fall:.0f} % less. Saved: {path}")
    service.close("success")
    if fall < 30:
        sys.exit("FAILED: it must fall by at least 30 %.")


if __name__ == "__main__":
    main()
