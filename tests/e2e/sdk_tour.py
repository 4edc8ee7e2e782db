# SPDX-License-Identifier: Apache-2.0
"""The official SDK, any version from 0.25 on: create, train, save, sample, resume, list, delete, a user error, close.

usage: sdk_tour.py URL KEY
"""
import importlib.metadata
import inspect
import math
import os
import sys
import warnings

warnings.simplefilter("ignore")
import tinker  # noqa: E402
from tinker import types  # noqa: E402

TEXT = [5, 9, 17, 33, 65, 12, 40, 7]


def datum(tokens):
    n = len(tokens) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[n]),
                        "weights": types.TensorData(data=[1.0] * n, dtype="float32", shape=[n])})


def settled(call):
    """0.38 returns futures where older versions return the thing itself."""
    return call.result() if hasattr(call, "result") and not hasattr(call, "sample") and \
        not hasattr(call, "forward_backward") else call


def train(client, steps):
    losses = []
    for _ in range(steps):
        forward = client.forward_backward([datum(TEXT), datum(TEXT[::-1])], "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=3e-3))
        losses.append(forward.result().metrics["loss:sum"])
        step.result()
    return losses


def main():
    url, key = sys.argv[1:3]
    version = importlib.metadata.version("tinker")
    service = tinker.ServiceClient(base_url=url, api_key=key)
    assert "tiny" in [m.model_name for m in service.get_server_capabilities().supported_models]
    client = settled(service.create_lora_training_client(base_model="tiny", rank=8, seed=1))
    assert client.get_info().model_data.model_name == "tiny"
    losses = train(client, 8)
    assert losses[-1] < 0.7 * losses[0], losses

    path = client.save_state("state").result().path
    sampler_path = client.save_weights_for_sampler("sampler").result().path
    prompt = types.ModelInput.from_ints(TEXT)
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=3, stop=[])
    sampler = settled(service.create_sampling_client(model_path=sampler_path))
    live = settled(client.save_weights_and_get_sampling_client())
    one = sampler.sample(prompt=prompt, num_samples=2, sampling_params=params).result().sequences
    two = live.sample(prompt=prompt, num_samples=2, sampling_params=params).result().sequences
    assert [s.tokens for s in one] == [s.tokens for s in two] and len(one[0].tokens) == 4
    scores = sampler.compute_logprobs(prompt).result()
    if "prompt_alt_tokens_k" in inspect.signature(sampler.sample).parameters:
        rows = len(TEXT) - 1
        named = types.TensorData(data=TEXT[1:], dtype="int64", shape=[rows, 1])
        out = sampler.sample(prompt=prompt, num_samples=1, sampling_params=params, target_prompt_logprobs=named,
                             prompt_alt_tokens_k=2).result()
        assert list(out.target_prompt_logprobs.data) == scores[1:], (out.target_prompt_logprobs, scores)
        assert list(out.prompt_alt_tokens.tokens.shape) == [rows, 2], out.prompt_alt_tokens
    trained = client.forward([datum(TEXT)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    assert scores[0] is None and math.dist(scores[1:], trained) < 1e-4

    again = settled(service.create_training_client_from_state_with_optimizer(path))
    assert train(again, 2) == train(client, 2)

    rest = service.create_rest_client()
    runs = rest.list_training_runs().result()
    assert {client.get_info().model_id, again.get_info().model_id} <= {r.training_run_id for r in runs.training_runs}
    run_id = path.split("/")[2]
    rest.delete_checkpoint(run_id, "weights/state").result()
    left = [c.checkpoint_id for c in rest.list_checkpoints(run_id).result().checkpoints]
    assert left == ["sampler_weights/sampler"], left
    try:
        client.forward_backward([datum([10 ** 7, 1, 2])], "cross_entropy").result()
        raise AssertionError("a token outside the vocabulary was accepted")
    except tinker.RequestFailedError as error:
        assert "data[0]" in str(error), error
    client.forward([datum(TEXT)], "cross_entropy").result()
    if hasattr(service, "close"):
        service.close("success")
    if os.environ.get("E2E_ITEMS"):  # wire.py wants a newer SDK than some of those that come here
        with open(os.environ["E2E_ITEMS"], "a") as out:
            out.write(f"{131 if version == '0.38.0' else 132} sdk_tour.py with tinker {version}\n")
    print(f"tinker {version}: loss {losses[0]:.2f} to {losses[-1]:.2f}; saved, sampled, resumed, listed, deleted", flush=True)


if __name__ == "__main__":
    main()
