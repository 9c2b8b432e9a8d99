"""The command `gcbench check`: all checks of a method, with one line for each."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

import gcbench
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, Properties
from gcbench.core.wrappers.virtual import analytic_ratio, is_direction
from gcbench.runner.check.conservation import check_conserves, check_descends
from gcbench.runner.check.contract import (
    LENGTHS,
    ODD_INPUTS,
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
    traces_over_gloo,
)
from gcbench.runner.check.promises import (
    VECTORS,
    check_contractive,
    check_direction,
    check_divisible,
    check_error_feedback,
    check_exact,
    check_mean_linear,
    check_scope,
    check_unbiased,
)
from gcbench.runner.check.steps import WORKERS, Trace, trace, wire
from gcbench.runner.check.subject import Subject
from gcbench.runner.launch.instantiate import make_compressor
from gcbench.runner.launch.local import WorkerFailed

PACKAGE = Path(gcbench.__file__).parent

Check = Callable[[], str | None]
"""A check raises AssertionError with a sentence; it may return more to say."""


def check_method(subject: Subject) -> bool:
    """Print one line per check, and return whether all is well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks try settings that cause warnings
        typed = make_compressor(subject.typed)
        if not print_line("has what a method has", {"": partial(check_parts, typed)}):
            return False
        print(f"tried   {'; '.join(label or 'as it is' for label in subject.cases)}")
        makers = {label: partial(make_compressor, node) for label, node in subject.cases.items()}
        by_case = {label: dict(_checks(maker)) for label, maker in makers.items()}
        first, *_ = makers
        by_case[first]["descends a quadratic"] = partial(check_descends, makers[first]())
        names = dict.fromkeys(
            name for checks in sorted(by_case.values(), key=len, reverse=True) for name in checks
        )
        held = [
            print_line(name, {k: checks[name] for k, checks in by_case.items() if name in checks})
            for name in names
        ]
        return all([*held, _layouts(subject), print_line("sends", {"": partial(_sends, typed)})])


def _checks(maker: Callable[[], Compressor]) -> Iterator[tuple[str, Check]]:
    compressor = maker()
    promises = compressor.properties
    yield "shapes and types; gradients left alone", partial(check_shapes, compressor)
    yield "states are not changed in place", partial(check_state_is_pure, compressor)
    yield "state survives a checkpoint", partial(check_state_restores, compressor)
    yield "same seed, same bits", partial(check_same_bits, maker)
    yield "odd gradients", partial(_odd_inputs, compressor)
    yield "tensors of any length", partial(_lengths, compressor)
    if promises.exact:
        yield "exact", partial(check_exact, compressor)
    if promises.unbiased:
        yield "unbiased", partial(check_unbiased, compressor)
    if promises.contractive:
        yield "contractive", partial(_contractive, compressor)
    if promises.mean_linear:
        yield "mean-linear", partial(check_mean_linear, compressor)
    if promises.divisible:
        yield "divisible", partial(check_divisible, compressor)
    yield (
        f"a scale: {'no' if is_direction(compressor) else 'yes'}",
        partial(check_direction, compressor),
    )
    yield f"scope={promises.scope}", partial(check_scope, compressor)
    yield "error feedback adds up", partial(check_error_feedback, compressor)
    yield "nothing is lost in 60 steps", partial(check_conserves, compressor)


def _odd_inputs(compressor: Compressor) -> None:
    """Check steps on all odd gradients.

    If a method promises anything about its error, the update of zero gradients must be zero.
    """
    promises: Properties = compressor.properties
    for kind in ODD_INPUTS:
        check_odd_input(
            compressor, kind, promises.exact or promises.unbiased or promises.contractive
        )


def _lengths(compressor: Compressor) -> None:
    for n in LENGTHS:
        check_length(compressor, n)


def _contractive(compressor: Compressor) -> str:
    shares = {kind: check_contractive(compressor, kind) for kind in VECTORS}
    worst = max(shares, key=lambda kind: shares[kind])
    return f"delta is {1 - shares[worst]:.3g}, measured for the vector '{worst}'"


def _layouts(subject: Subject) -> bool:
    """Check every case in one process, in four, and in two of two workers each."""
    try:
        traces = traces_over_gloo(list(subject.cases.values()))
    except WorkerFailed as failure:
        return _print_failure("runs in 4 processes", "", str(failure))
    compressors = {label: make_compressor(node) for label, node in subject.cases.items()}
    virtual = {label: trace(compressor, Comm(WORKERS)) for label, compressor in compressors.items()}
    checks: dict[str, Callable[[str, Sequence[Trace]], None]] = {
        "same updates": lambda k, real: check_updates_agree(compressors[k], virtual[k], real),
        "ranks apply the same": lambda k, real: check_replicas(real),
        "same residuals": lambda k, real: check_residuals(virtual[k], real),
        "same bits": lambda k, real: check_bits(virtual[k], real),
    }
    held = [
        print_line(
            f"{layout}: {name}",
            {k: partial(check, k, real) for k, real in zip(subject.cases, by_case, strict=True)},
        )
        for layout, by_case in traces.items()
        for name, check in checks.items()
    ]
    return all(held)


def _sends(compressor: Compressor) -> str:
    sent, analytic = wire(compressor), analytic_ratio(compressor)
    counted = f", {analytic:.4g} x as its paper counts" if analytic else ""
    bits = (
        f"{sent.bits_per_value:.4g} bits per value, {sent.ratio:.4g} x fewer than fp32{counted}; "
        f"receives {sent.received_ratio:.4g} x fewer than in an all-reduce"
    )
    return f"{bits} ({', '.join(' '.join(line.split()) for line in sent.lines)})"


def print_line(name: str, cases: dict[str, Check]) -> bool:
    """Print the line of one check for all cases, or for the first case in which it fails."""
    remarks = []
    for label, check in cases.items():
        try:
            remarks.append(check())
        except AssertionError as error:
            return _print_failure(name, label, str(error) or place_of(error))
        except Exception as error:  # raised by somebody else's code
            return _print_failure(
                name, label, f"{type(error).__name__}: {error} ({place_of(error)})"
            )
    print(f"ok      {name}{f': {remarks[0]}' if remarks[0] else ''}", flush=True)
    return True


def _print_failure(name: str, label: str, sentence: str) -> bool:
    print(f"FAILED  {name}{f' (with {label})' if label else ''}: {sentence}", flush=True)
    return False


def place_of(error: BaseException) -> str:
    """Return the place of an error in the user's code, or else where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        f
        for f in frames
        if not f.filename.startswith((str(PACKAGE), str(Path(torch.__file__).parent)))
    ]
    frame = (theirs or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"
