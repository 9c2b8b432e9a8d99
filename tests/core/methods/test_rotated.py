"""rotate=hadamard: the same codes of rotated gradients, and a mean that is rotated back once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from method_cases import aggregate, build_method
from torch import Tensor

from gcbench.core.codecs.hadamard import add_rotated_back, rotate
from gcbench.core.compressor import Step
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers import wrappers
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.wrappers import SIZE

WORKERS = 3


def heavy(n: int) -> Tensor:
    return torch.randn(WORKERS, n, generator=torch.Generator().manual_seed(n)) ** 3


def vnmse(values: Tensor, of: Tensor) -> float:
    return float((values - of).square().sum() / of.square().sum())


def test_the_update_is_the_mean_of_codes_of_rotated_gradients() -> None:
    """They are coded here as a gradient of their own, in blocks that are full."""
    grads = {"w": heavy(2 * SIZE)}
    out = aggregate(build(QSGD(7), rotate="hadamard"), grads, seed=4)
    noise = Step(0, 4, range(WORKERS), {"w": 0}).noise(
        "rotation", {"w": 2 * SIZE}, torch.device("cpu"), shared=True
    )
    plain = aggregate(build(QSGD(7)), {"w": rotate([grads["w"]], noise, SIZE)}, seed=4)
    for found, coded in ((out.update, plain.update), (out.sent(), plain.sent())):
        expected = torch.zeros_like(found["w"])
        add_rotated_back(coded["w"], noise, SIZE, [expected])
        assert torch.equal(found["w"], expected)


@pytest.mark.parametrize("exchange", ["gather", "sum", "scatter"])
def test_heavy_tails_cost_a_quantizer_less_after_a_rotation(exchange: str) -> None:
    grads = {"w": heavy(9000), "b": heavy(10)}
    mean = grads["w"].mean(0, keepdim=True)
    plain, turned = (
        vnmse(
            aggregate(build_method("qsgd", min_size=0, exchange=exchange, rotate=r), grads).update[
                "w"
            ],
            mean,
        )
        for r in ("none", "hadamard")
    )
    assert turned < 0.3 * plain


@pytest.mark.parametrize("exchange", ["gather", "sum", "scatter"])
def test_rotated_values_are_clipped_so_that_little_is_lost(exchange: str) -> None:
    """The mean of many draws is nearly the gradient, of whose largest values clipping cuts most."""
    grads = {"w": heavy(2 * SIZE)}
    mean, off = grads["w"].mean(0, keepdim=True), {}
    for turn in ("none", "hadamard"):
        method = build_method("terngrad", min_size=0, exchange=exchange, rotate=turn)
        updates = [aggregate(method, grads, number=n).update["w"] for n in range(60)]
        off[turn] = vnmse(torch.stack(updates).mean(0), mean)
    assert off["hadamard"] < 0.3 * off["none"]


def test_a_rotation_under_a_2_norm_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="^rotate=hadamard norm=l2: .* Type norm=linf$"):
        build(QSGD(7, norm="l2"), rotate="hadamard")


def test_the_mean_is_rotated_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []

    def count(y: Tensor, *others: object) -> None:
        rows.append(len(y))
        add_rotated_back(y, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(wrappers, "add_rotated_back", count)
    aggregate(build(QSGD(7), rotate="hadamard"), {"w": heavy(100)})
    assert rows == [1]


def test_a_rotation_is_drawn_in_every_step() -> None:
    method, grads = build(QSGD(127), rotate="hadamard"), {"w": heavy(100)}
    one, other = (aggregate(method, grads, number=n).update["w"] for n in (0, 1))
    errors: Sequence[Tensor] = [x - grads["w"].mean(0) for x in (one, other)]
    assert abs(torch.nn.functional.cosine_similarity(*errors)) < 0.4
