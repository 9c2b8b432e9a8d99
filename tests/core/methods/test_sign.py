"""One bit per value: scaled signs, 1BitSGD, and Signum's vote."""

from __future__ import annotations

import pytest
import torch
from method_cases import aggregate, build_method, compose_method, flat, gradients
from nightly import each
from torch import Tensor

from gcbench.core.codecs.scales import mean_magnitude, mean_where
from gcbench.core.compressor import State
from gcbench.core.methods.onebit import OneBit
from gcbench.core.methods.sign import ScaledSign
from gcbench.core.methods.signum import Signum
from gcbench.core.wrappers.build import build

V = torch.tensor([3.0, -1.0, 0.5, -0.5, 0.0, 2.0, -4.0])


def sent(method: ScaledSign | OneBit, *rows: Tensor) -> Tensor:
    return aggregate(build(method), {"w": torch.stack(rows)}).sent()["w"]


def test_scaled_signs_by_hand() -> None:
    """In buckets of 4 and 3, the mean magnitudes are 5/4 and 6/3; 0 and -0 count as positive."""
    expected = torch.tensor([1.25, -1.25, 1.25, -1.25, 2.0, 2.0, -2.0])
    assert torch.equal(sent(ScaledSign(bucket_size=4), V)[0], expected)
    assert torch.equal(
        sent(ScaledSign(bucket_size=4), -V)[0], torch.where(V == 0, expected, -expected)
    )


def test_one_scale_a_tensor_is_what_sign_norm_sends() -> None:
    """This holds for a tensor of any size, whatever other tensors there are."""
    grads = {"a": V.unsqueeze(0), "b": torch.full((1, 2, 3), -7.0), "c": torch.tensor([5.0])}
    for compressor in (
        build(ScaledSign(per_layer=True)),
        build_method("sign_norm"),
        build_method("scaled_sign", per_layer=True),
    ):
        update = aggregate(compressor, grads).update
        assert torch.equal(update["a"], torch.where(V >= 0, 1.0, -1.0).unsqueeze(0) * 11 / 7)
        assert torch.equal(update["b"], grads["b"]) and torch.equal(update["c"], grads["c"])


def test_a_root_mean_square_keeps_the_length_and_shortens_the_largest_error() -> None:
    """max|Q(v) - v| <= sqrt(1 - 1 / d) max|v|, with equality where one of equal values is 0."""
    d = 64
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(d, generator=generator) ** power for power in (1, 3, 9)]
    flat = torch.ones(d)
    flat[0] = 0
    rows += [flat, torch.eye(d)[5], 1e30 * rows[0], 1e-30 * rows[1]]
    method = ScaledSign(bucket_size=d, scale="rms")
    for v in rows:
        code = sent(method, v)[0].double()
        assert float(code.norm()) == pytest.approx(float(v.double().norm()), rel=1e-6)
        largest = (code - v).abs().max() / v.abs().max()
        assert largest <= (1 - 1 / d) ** 0.5 * (1 + 1e-6)
    nearly = (sent(method, flat)[0].double() - flat).abs().max()
    assert float(nearly) == pytest.approx((1 - 1 / d) ** 0.5, rel=1e-6)


@each("size", [1, 16, 512])
def test_the_error_of_scaled_signs(size: int) -> None:
    """It is (1 - |v|_1^2 / (d |v|_2^2)) |v|_2^2, also with zeros."""
    v = torch.randn(4, 512, generator=torch.Generator().manual_seed(0))
    v[v.abs() < 0.3] = 0
    error = (sent(ScaledSign(bucket_size=size), *v) - v).double().square().sum(1)
    buckets = v.double().view(4, -1, size)
    expected = (buckets.square().sum(-1) - buckets.abs().sum(-1).square() / size).sum(1)
    torch.testing.assert_close(error, expected, rtol=1e-4, atol=1e-6)


def test_one_bit_by_hand() -> None:
    """In buckets of 4 and 3, the means are 1.75 and -0.75, then 1 and -4."""
    expected = torch.tensor([1.75, -0.75, 1.75, -0.75, 1.0, 1.0, -4.0])
    assert torch.equal(sent(OneBit(bucket_size=4), V)[0], expected)


def test_one_bit_is_the_best_code_with_this_threshold() -> None:
    """The residual has mean zero on either side, and two distinct values are reproduced."""
    v = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    rest = v - sent(OneBit(bucket_size=64), *v)
    assert abs(float(rest[v >= 0].mean())) < 1e-6 and abs(float(rest[v < 0].mean())) < 1e-6
    two = torch.where(v > 0, 0.3, -2.0)
    torch.testing.assert_close(sent(OneBit(bucket_size=64), *two), two)


def test_scales_do_not_depend_on_the_rows_beside_them() -> None:
    """They are equal to the bit, also with several threads.

    A process of one real worker has one row, a process of virtual workers many.
    """
    x = torch.randn(4, 200_003, generator=torch.Generator().manual_seed(2))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for mean in (
            mean_magnitude,
            lambda x: mean_where(x, x >= 0),
            lambda x: mean_where(x, x < 0),
        ):
            assert torch.equal(mean(x), torch.cat([mean(x[i : i + 1]) for i in range(4)]))
    finally:
        torch.set_num_threads(threads)


# Signum


def vote(momenta: list[list[float]], number: int) -> list[float]:
    """Return the vote by hand: a zero counts as + on even steps and - on odd ones, a tie is 0."""
    votes = [[1 if v > 0 or (v == 0 and number % 2 == 0) else -1 for v in row] for row in momenta]
    totals = [sum(column) for column in zip(*votes, strict=True)]
    return [(total > 0) - (total < 0) for total in totals]


@each("workers", [1, 2, 3, 4])
@each("momentum", [0.0, 0.5, 0.9])
@each("start", ["zero", "gradient"])
def test_signum_is_a_vote_of_momenta(start: str, workers: int, momentum: float) -> None:
    compressor, state = build_method("signum", momentum=momentum, momentum_start=start), State()
    v = [[0.0] * 6 for _ in range(workers)]
    for number in range(5):
        generator = torch.Generator().manual_seed(number)
        rows = torch.randint(-2, 3, (workers, 6), generator=generator).float()
        out = aggregate(
            compressor,
            {"a": rows[:, :2], "b": rows[:, 2:].view(workers, 2, 2)},
            number=number,
            state=state,
        )
        state = out.state
        if number == 0 and start == "gradient":
            v = rows.tolist()
        v = [
            [momentum * old + (1 - momentum) * new for old, new in zip(a, b, strict=True)]
            for a, b in zip(v, rows.tolist(), strict=True)
        ]
        assert flat(out.update)[0].tolist() == vote(v, number)
        torch.testing.assert_close(
            flat(state.per_worker), torch.tensor(v).double(), rtol=0, atol=1e-6
        )
        assert set(flat(out.sent()).unique().tolist()) <= {-1.0, 1.0}


def test_a_value_without_gradient_stays_where_it_is() -> None:
    state, moved = State(), torch.zeros(1, 3)
    for number in range(10):
        out = aggregate(Signum(0.9), {"w": torch.zeros(3, 3)}, number=number, state=state)
        state, moved = out.state, moved + out.update["w"]
    assert not moved.any()


def test_one_liar_does_not_turn_the_vote() -> None:
    honest = gradients([0], 0)
    rows = {k: torch.cat([g, 2 * g, -1e6 * g]) for k, g in honest.items()}
    assert torch.equal(flat(aggregate(Signum(0.0), rows).update), flat(honest).sign())


def test_signum_has_no_error_feedback() -> None:
    assert "error_feedback" not in compose_method("signum")
    assert isinstance(build_method("signum").inner, Signum)  # type: ignore[attr-defined]
