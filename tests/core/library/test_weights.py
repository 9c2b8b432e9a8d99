"""gcbench.compress_weights on modules that fully_shard has sharded, in four processes."""

from __future__ import annotations

import pytest
import torch
from gloo_pool import pool
from torch import Tensor
from weight_cases import both, refusal, resume, train_beside_plain, weights_of_steps


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize(
    ("native", "policy"),
    [(False, True), pytest.param(False, False, marks=pytest.mark.slow), (True, False)],
    ids=["bf16", "fp32", "on a mesh of two dimensions"],
)
def test_weights_that_are_sent_whole_train_as_plain_fsdp(native: bool, policy: bool) -> None:
    for ours, plain in pool(4).run(train_beside_plain, native, policy):
        assert equal(ours, plain)


@pytest.mark.parametrize("differences", [True, False])
def test_all_processes_compute_with_the_decoded_weights(differences: bool) -> None:
    """They use the same ones in the backward pass, for which nothing is sent."""
    ranks = pool(4).run(weights_of_steps, differences)
    for seen in ranks:
        assert equal(seen["used"], [w for w in seen["expected"] for _ in range(2)])
        assert equal(seen["used"], ranks[0]["used"])
        bits = torch.stack(seen["bits"])
        assert torch.equal(bits[:, 0], bits[:, 1])
        sent = bits[1:, 0] - bits[:-1, 0]
        # Eight rows of 16 values, in buckets of 32 with a scale of 32 bits.
        assert sent.tolist() == [8 * 16 * 4 + 4 * 32] * 4
        pairs = zip(seen["used"][::2], seen["true"], strict=True)
        errors = [float((a - b).norm() / b.norm()) for a, b in pairs]
        assert max(errors[1:]) < 0.02 if differences else min(errors) > 0.05


def test_a_state_goes_on_with_the_same_weights() -> None:
    for trained, resumed, messages in pool(4).run(resume):
        assert equal(trained, resumed)
        assert all("; load what this worker saved" in message for message in messages)


def test_gradients_and_weights_in_four_bits_learn() -> None:
    for losses in pool(4).run(both):
        assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


REFUSALS = {
    "plain": "Sequential: fully_shard did not shard it, so that no weights are gathered; type ",
    "low rank": "compressor=powersgd: weights are gathered in a code of each shard, ",
    "residual": "compressor=sparseloco: weights are gathered in a code of each shard, ",
    "scatter": "compressor=qsgd exchange=scatter: weights are gathered in a code of each shard, ",
    "twice": "this module's weights have a compressor, and take only one; type handle.remove() ",
    "bytes": "FSDP gathers these parameters as bytes, as of float8, and not as numbers; type ",
}


def test_mistakes_are_refused_in_one_sentence() -> None:
    for case, start in REFUSALS.items():
        for sentence in pool(4).run(refusal, case):
            print(case, sentence)
            assert sentence.startswith(start) and "; type " in sentence and "\n" not in sentence
