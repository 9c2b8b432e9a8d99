"""A method that breaks a rule fails the check of that rule, with a sentence that says so."""

from __future__ import annotations

from collections.abc import Callable

import broken_methods as broken
import pytest
from gloo_pool import pool
from layout_cases import traces_in_one_process, traces_over_gloo
from nightly import each
from outside import Natural

from gcbench.core.compressor import Compressor
from gcbench.core.wrappers.build import build
from gcbench.runner.check.conservation import check_conserves, check_descends
from gcbench.runner.check.contract import (
    check_length,
    check_odd_input,
    check_parts,
    check_same_bits,
    check_shapes,
    check_state_is_pure,
    check_state_restores,
)
from gcbench.runner.check.layouts import (
    check_bits,
    check_replicas,
    check_residuals,
    check_updates_agree,
)
from gcbench.runner.check.promises import (
    check_contractive,
    check_direction,
    check_divisible,
    check_error_feedback,
    check_exact,
    check_mean_linear,
    check_scope,
    check_unbiased,
)
from gcbench.runner.check.steps import Trace

RULES: list[tuple[type, Callable[[Compressor], object], str]] = [
    (broken.NotAMethod, check_parts, "has no properties and no encode"),
    (broken.WithoutProperties, check_parts, "WithoutProperties has no properties and no decode_ad"),
    (broken.WithoutMean, check_shapes, "all workers agree on one row"),
    (broken.InPlace, check_shapes, "changed in place"),
    (broken.MomentumInPlace, check_state_is_pure, "never changed in place"),
    (broken.MomentumOfItsOwn, check_state_restores, "what a method remembers is in its state"),
    (broken.StreamOfItsOwn, lambda c: check_same_bits(lambda: c), "chance comes from step.noise"),
    (
        broken.DividesByNorm,
        lambda c: check_odd_input(c, "zeros", zero_of_zeros=False),
        "zeros: the update is not finite",
    ),
    (
        broken.WholeBytesOnly,
        lambda c: check_length(c, 9),
        "9 values: the update has the shape (1, 8)",
    ),
    (broken.ExactButHalf, check_exact, "promises to be exact"),
    (broken.RoundsDown, check_unbiased, "promises to be unbiased"),
    (broken.SeldomRoundsUp, check_unbiased, "promises to be unbiased"),
    (broken.ThriceAsLong, lambda c: check_contractive(c, "flat"), "the error is 4.000 |v|^2"),
    (broken.Vote, check_mean_linear, "promises to be mean-linear"),
    (broken.Vote, check_direction, "promise direction=True"),
    (broken.DirectionInName, check_direction, "promises a direction"),
    (broken.VectorsOnly, check_divisible, "the update of conv depends on its shape"),
    (broken.OneScaleOfAll, check_scope, "depends on the tensors beside it"),
    (broken.GlobalInName, check_scope, "is the same whatever lies beside it"),
    (broken.SentIsDrawnAnew, check_error_feedback, "do not add up"),
    (broken.SentIsMore, check_conserves, "are off their sum by"),
    (broken.FirstColumnOnly, check_conserves, "a part of the gradient is never sent"),
    (broken.DrawnOnce, check_conserves, "times as far off as by chance"),
    (broken.Uphill, check_descends, "100 steps on a quadratic leave"),
]


@each(("method", "check", "sentence"), RULES)
def test_a_broken_rule_is_found(
    method: type, check: Callable[[Compressor], object], sentence: str
) -> None:
    with pytest.raises(AssertionError) as found:
        check(build(method()))
    assert sentence in str(found.value)


def seen(method: type) -> tuple[Compressor, Trace, list[Trace]]:
    """Return a method, its trace with virtual workers, and those of two processes."""
    compressor = build(method())
    virtual = traces_in_one_process({"": compressor})[""]
    return (
        compressor,
        virtual,
        [process[""] for process in pool(2).run(traces_over_gloo, {"": compressor})],
    )


def test_a_method_that_looks_at_all_rows_is_found() -> None:
    compressor, virtual, processes = seen(broken.LooksAtAllRows)
    with pytest.raises(AssertionError, match="another update than virtual workers"):
        check_updates_agree(compressor, virtual, processes)
    check_replicas(processes)


def test_a_method_that_shares_nothing_is_found() -> None:
    _, virtual, processes = seen(broken.NothingIsShared)
    with pytest.raises(AssertionError, match="ranks apply different updates"):
        check_replicas(processes)
    with pytest.raises(AssertionError, match="sends nothing"):
        check_bits(virtual, processes)


def test_memories_are_compared() -> None:
    _, virtual, processes = seen(Natural)
    worker = {"conv": virtual.updates[0]["conv"].expand(4, -1, -1, -1, -1)}
    remembers = virtual._replace(residuals=[[worker]] * 3)
    halves = [
        p._replace(residuals=[[{"conv": worker["conv"][:2] * (1 + i)}]] * 3)
        for i, p in enumerate(processes)
    ]
    with pytest.raises(AssertionError, match="real workers keep another state of conv"):
        check_residuals(remembers, halves)
