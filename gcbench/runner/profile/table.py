"""What a profiled loop would gain: one table and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gcbench.runner.console import TextTable, as_text
from gcbench.runner.predict.devices import format_rate, format_seconds
from gcbench.runner.predict.job import DENSE, HALF, Job
from gcbench.runner.predict.model import Method
from gcbench.runner.predict.sigma import LEAST, Bounded, read_rho


class Outcome(NamedTuple):
    """A method's predicted steps in a job."""

    method: Method
    step: float
    overlapped: float | None  # None: it needs all gradients at once
    vnmse: float
    fewer: float  # times fewer bits than fp32
    rho: Bounded | None

    @property
    def best(self) -> float:
        return min(self.step, self.overlapped or self.step)


def outcomes_of(job: Job, results: Sequence[str] = ("outputs",)) -> list[Outcome]:
    """Return the outcome of each method of a job, in its order."""
    kept = read_rho(results)
    found = []
    for one in job.methods:
        method = job.method(one)
        bits = sum(message.bits for message in method.messages(job.workers))
        found.append(
            Outcome(
                method,
                job.step(method, overlap=False),
                job.step(method, overlap=True) if method.in_buckets else None,
                one.vnmse,
                8 * method.dense_bytes / bits,
                kept.of(method, job.workers, 1.0) if kept else None,
            )
        )
    return found


def table_of(job: Job, results: Sequence[str] = ("outputs",)) -> str:
    """Return the table of a job and the sentence that follows from it."""
    outcomes = outcomes_of(job, results)
    base = next(one for one in outcomes if one.method.title == HALF)
    bound = base.overlapped or base.step
    rows = [
        [
            one.method.title,
            f"{one.fewer:.3g}",
            format_seconds(one.step),
            format_seconds(one.overlapped) if one.overlapped else "-",
            f"{bound / one.best:.2f}",
            f"{one.vnmse:.2g}",
            _rho(one),
        ]
        for one in outcomes
    ]
    waits = 100 * job.exposed_seconds / job.step_seconds
    return as_text(
        TextTable(
            ["method", "fewer bits", "step", "overlapped", "sigma", "vNMSE", "rho"],
            rows,
            title=f"{job.title}, {job.workers} workers, {job.values:,} values",
            notes=[
                f"Measured: a step takes {format_seconds(job.step_seconds)}, of which it waits "
                f"{format_seconds(job.exposed_seconds)} ({waits:.0f} %) for exchanges of fp32. The "
                f"group has {format_rate(job.link.bits_per_second)} and "
                f"{format_seconds(job.link.latency_seconds)}.",
                "Predicted: steps with coding and exchange after the backward pass, and overlapped "
                "with it. sigma: times shorter than bf16 overlapped. rho: times the tokens for the "
                "loss of dense training, of kept runs of this size; -: not known.",
                sentence_of(job, outcomes),
            ],
        )
    )


def _rho(one: Outcome) -> str:
    if one.rho is None or one.rho.value is None:
        return "-"
    if one.rho.low == one.rho.high:
        return f"{one.rho.value:.2f}"
    return f"{one.rho.value:.2f} [{one.rho.low:.2f}, {one.rho.high:.2f}]"


def sentence_of(job: Job, outcomes: Sequence[Outcome]) -> str:
    """Return whether compression pays in the job, with which method, and on which links."""
    base = next(one for one in outcomes if one.method.title == HALF)
    others = [one.method for one in outcomes if one.method.title not in (HALF, DENSE)]
    if not others:
        return "No method but dense ones was asked for."
    best = max(others, key=lambda method: _sigma(job, method, base.method))
    sigma, until = _sigma(job, best, base.method), _factor_of_links(job, others, base.method)
    rate = format_rate(job.link.bits_per_second / until) if until else None
    if sigma < LEAST:
        waits = 1 - job.compute_seconds / base.best
        on = f" It would on links below {rate}." if rate else ""
        return (
            f"Compression does not pay here: bf16 overlapped waits for {100 * waits:.0f} % of a "
            f"step, and {best.title} is {sigma:.2f} times as fast.{on}"
        )
    known = next(one.rho for one in outcomes if one.method is best)
    costs = "" if known else ", if it needs no more steps than dense training"
    return (
        f"Compression pays here{f', up to links of {rate}' if rate else ''}: with {best.title} a "
        f"step is {sigma:.2f} times shorter than with bf16 overlapped{costs}."
    )


def _sigma(job: Job, method: Method, base: Method) -> float:
    """Return how many times shorter a method's step is than that of bf16, both overlapped if that
    is shorter."""
    steps = [min(job.step(one, True), job.step(one, False)) for one in (base, method)]
    return steps[0] / steps[1]


def _factor_of_links(job: Job, methods: Sequence[Method], base: Method) -> float | None:
    """Return how many times slower, or faster (below 1), links are where a method begins to pay.

    None: there are none within a thousand times.
    """

    def pays(log_factor: float) -> bool:
        there = job.on_slower_links(10**log_factor)
        return any(_sigma(there, method, base) >= LEAST for method in methods)

    low, high = -3.0, 3.0
    if pays(low) or not pays(high):
        return None
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return float(10**high)
