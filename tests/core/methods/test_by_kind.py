"""Convolutions are compressed by one method, other tensors by another."""

from __future__ import annotations

import pytest
import torch
from method_cases import aggregate, build_method

from gcbench.core.methods.by_kind import ByKind
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.onebit import OneBit
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.virtual import compressed_share

GRADS = {
    "linear": torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0)),
    "convolution": torch.randn(2, 8, 4, 3, 3, generator=torch.Generator().manual_seed(1)),
    "bias": torch.randn(2, 8, generator=torch.Generator().manual_seed(2)),
}


def test_each_kind_is_coded_by_its_own_method() -> None:
    coarse, fine = (build(QSGD(levels=levels, bucket_size=16)) for levels in (1, 127))
    out = aggregate(ByKind(coarse, fine), GRADS)
    assert list(out.update) == list(out.sent()) == list(GRADS)
    convolutions = {"convolution": GRADS["convolution"]}
    others = {k: GRADS[k] for k in ("linear", "bias")}
    for method, part in ((coarse, convolutions), (fine, others)):
        alone = aggregate(method, part)
        for name in part:
            torch.testing.assert_close(
                out.sent()[name].abs().amax(), alone.sent()[name].abs().amax()
            )
    errors = {
        k: float((out.update[k] - g.mean(0)).norm() / g.mean(0).norm()) for k, g in GRADS.items()
    }
    assert errors["convolution"] > 0.3 > 0.05 > max(errors["linear"], errors["bias"])


def test_both_remember() -> None:
    method = ByKind(PowerSGD(1), PowerSGD(2))
    first = aggregate(method, {k: GRADS[k] for k in ("linear", "convolution")})
    assert {name: q.shape[1] for name, q in first.state.shared.items()} == {
        "linear": 2,
        "convolution": 1,
    }
    again = aggregate(
        method, {k: GRADS[k] for k in ("linear", "convolution")}, number=1, state=first.state
    )
    assert set(again.state.shared) == {"linear", "convolution"}


def test_it_promises_what_both_promise() -> None:
    exact, unbiased = Dense(), build(QSGD(levels=1, bucket_size=512))
    assert ByKind(exact, exact).properties == exact.properties._replace(divisible=False)
    assert not ByKind(exact, unbiased).properties.exact
    assert ByKind(unbiased, unbiased).properties.unbiased


def test_its_bits_are_those_of_the_kinds() -> None:
    method = build_method("qsgd_by_kind", convolution_bits=8, bits=2, min_size=0)
    out = aggregate(method, GRADS)
    values = {k: set((g / g.abs().amax()).flatten().tolist()) for k, g in out.sent().items()}
    assert len(values["linear"]) <= 2 * 3 and len(values["convolution"]) > 50


def test_a_residual_of_shards_is_refused() -> None:
    coded = build(OneBit(bucket_size=64), exchange="scatter_coded", error_feedback=True)
    with pytest.raises(ValueError, match="a shard belongs to neither; type exchange=scatter"):
        build(ByKind(coded, Dense()))


def test_the_compressed_share_counts_each_tensor_in_its_kind() -> None:
    coded, dense = QSGD(levels=1, bucket_size=16), Dense()
    shapes = [(8, 4, 3, 3), (8, 16), (8,)]
    kinds = ((coded, dense), (dense, coded), (coded, coded))
    shares = [compressed_share(ByKind(*kind), shapes, exchanges=5) for kind in kinds]
    assert shares == [288 / 424, 136 / 424, 1]
