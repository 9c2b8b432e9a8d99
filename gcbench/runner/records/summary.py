"""The progress of a run, and a short table at its end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gcbench.core.share import advice_on_share, share_in_words
from gcbench.runner.console import TextTable, print_table
from gcbench.runner.differences import describe_choices
from gcbench.runner.records.schema import (
    BITS_PER_MIB,
    Bits,
    CompressionError,
    Logged,
    Phase,
    Result,
)

# What the line of a step puts together.
STEP = {
    "data": ("data",),
    "forward+backward": ("forward", "backward"),
    "coding": ("encode", "decode"),
    "exchange": ("exchange", "wait"),
    "update": ("update",),
}
SHOWN_SCORES = ("accuracy", "top5_accuracy", "perplexity", "distance", "loss")  # in this order


class ProgressDisplay:
    """A progress bar on a terminal, updated at every record; elsewhere a line per record.

    In a row of a sweep, which is quiet, the bar goes away at the end, and there are no lines.
    """

    def __init__(
        self, total_steps: int, console: Console, enabled: bool, quiet: bool = False
    ) -> None:
        self._console = console
        self._enabled = enabled and (console.is_terminal or not quiet)
        self._total = total_steps
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        shown = enabled and console.is_terminal
        self._bar = Progress(
            *columns, console=console, auto_refresh=False, disable=not shown, transient=quiet
        )
        self._task = self._bar.add_task("training", total=total_steps)

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, line: dict[str, Any]) -> None:
        if line["event"] == "compression":
            return
        values = [f"{name} {_number(line[name])}" for name in (*SHOWN_SCORES, "lr") if name in line]
        if self._enabled and self._console.is_terminal:
            text = ", ".join([line["event"], *values[:2]])
            self._bar.update(self._task, completed=line["step"], description=text, refresh=True)
        elif self._enabled:
            place = f"{line['event']} step {line['step']}/{self._total} epoch {line['epoch']:.2f}"
            self._console.print(Text(f"{place}: {', '.join(values)}"), soft_wrap=True)


def print_summary(result: Result, directory: Path, console: Console, verbose: bool = False) -> None:
    """Print a line each for scores, bits, error, throughput and a step, and where the files are.

    `verbose` prints everything that was counted.
    """
    facts = _facts(result) if verbose else _facts_in_short(result)
    if facts:
        print_table(TextTable([], facts, left=(0, 1)), console)
    if verbose and result.seconds:
        print_table(_phases(result.seconds), console)
    places = [f"files in {directory}"]
    if result.logged and (where := where_logged(result.logged, directory)):
        places.append(where)
    console.print(Text("; ".join(places)), soft_wrap=True)


def result_in_short(result: Result) -> str:
    """Return the first score of a result and how much less was sent than without compression."""
    test = result.test or {}
    scores = [f"{name} {_number(test[name])}" for name in SHOWN_SCORES if name in test]
    ratio = result.bits_sent.ratio if result.bits_sent else None
    return ", ".join([*scores[:1], *([f"{ratio:.2f}x"] if ratio else [])])


def where_logged(logged: Logged, directory: Path) -> str:
    """Return where to see what a logger has written, or what to type to see it."""
    place = directory / (logged.path or "")  # which may end with a pattern, that is not quoted
    path = f"{shlex.quote(str(place.parent))}/{place.name}"
    if logged.logger == "wandb":
        return f"W&B: {logged.url}" if logged.url else f"W&B: type wandb sync {path}"
    if logged.logger == "tensorboard":
        return f"TensorBoard: type tensorboard --logdir {path}"
    return f"metrics in {path}"


def _facts_in_short(result: Result) -> list[tuple[str, str]]:
    """Return eight facts at most, and those that a user has to do something about."""
    facts = [("status", _status(result))] if result.status != "done" else []
    test, data = result.test or {}, f"on {_split(result)} data"
    facts += [(name, f"{_score(name, test)} {data}") for name in SHOWN_SCORES if name in test]
    facts += _target(result)
    if sent := result.bits_sent:
        fp32, bf16 = _fewer(sent.ratio, "fp32"), _fewer(sent.bf16_ratio, "bf16")
        bf16 = bf16.replace("fewer ", "") if "fewer" in fp32 else bf16
        more = _advice_on_more(result, sent)
        facts.append(("sent", f"{sent.per_step:,.0f} bits a step{fp32}{bf16}{more}"))
    if wire := result.bits_wire:
        facts.append(("received", _received(result, wire, "bits a step", "an fp32 all-reduce")))
    share = result.compressed_share
    if share is not None and (advice := advice_on_share(share, result.config)):
        facts.append(("compressed", f"{share_in_words(share)} {advice}"))
    if error := result.compression_error:
        facts.append(("error", _error_in_short(error)))
    facts += _throughput(result)
    if result.seconds:
        facts.append(("step", _step_in_short(result, result.seconds)))
    return facts + _why_no_times(result)


def _step_in_short(result: Result, seconds: dict[str, Phase]) -> str:
    """Return the milliseconds of a step and of its phases, but for those that take under 2 %."""
    step = seconds["step"].mean
    parts = {
        name: sum(seconds[phase].mean for phase in phases if phase in seconds)
        for name, phases in STEP.items()
    }
    shown = [f"{name} {1e3 * part:.3g}" for name, part in parts.items() if part >= step / 50]
    link = result.config["network"] if result.has_emulated_times else None
    emulated = f" (exchanges as on {link['bandwidth']}, {link['latency']})" if link else ""
    return f"{1e3 * step:.3g} ms: {', '.join(shown)}{emulated}"


def _facts(result: Result) -> list[tuple[str, str]]:
    facts = [
        ("run", _title(result)),
        ("status", _status(result)),
        *_scores(result),
        *_target(result),
    ]
    for extended in result.extended:
        where = f"from step {extended.from_step} (epoch {extended.from_epoch:.4g})"
        facts.append(("extended", where))
    facts += [("workers", f"{one.workers} up to step {one.from_step}") for one in result.resharded]
    if sent := result.bits_sent:
        mib = sent.per_worker / BITS_PER_MIB
        amount = f"{mib:,.3f} MiB per worker, {sent.per_step:,.0f} bits per step"
        analytic = result.analytic_ratio
        by_paper = f" ({analytic:.2f}x by its paper's count)" if analytic else ""
        than = _fewer(sent.ratio, "fp32 gradients") + _fewer(sent.bf16_ratio, "bf16")
        fewer = amount + than + by_paper
        facts.append(("sent", fewer + _advice_on_more(result, sent)))
    if wire := result.bits_wire:
        got = _received(result, wire, "bits per step", "in an fp32 all-reduce")
        facts.append(("received", got))
    estimator = result.estimator or {}
    if (every := estimator.get("every", 1)) > 1:
        parts = estimator["fragments"]
        what = f"each of {parts} fragments" if parts > 1 else "all"
        each = f"{estimator['bits_per_exchange'] or 0:,.0f} bits each time"
        mean = "bits per step are the mean over all steps"
        facts.append(("exchanged", f"{what} every {every} steps, {each}; {mean}"))
    if (share := result.compressed_share) is not None:
        advice = advice_on_share(share, result.config)
        facts.append(("compressed", f"{share_in_words(share)} {advice}".rstrip()))
    if bound := result.shannon_bits_per_step:
        facts.append(("codes' Shannon bound", f"{bound:,.0f} bits per step"))
    if across := result.bits_between_nodes:
        amount = f"{across.per_step:,.0f} bits per step and node"
        facts.append(("between nodes", amount + _fewer(across.ratio, "fp32 gradients")))
    if error := result.compression_error:
        facts.append(("compression error", _error(error)))
    facts += _throughput(result)
    if result.peak_mib is not None:
        state = f"{result.state_mib or 0:,.1f} MiB of a worker's compressor"
        facts.append(("memory", f"{result.peak_mib:,.0f} MiB in a process at the peak, {state}"))
    if result.has_emulated_times:
        link = result.config["network"]
        facts.append(("time", f"exchanges emulated as on {link['bandwidth']}, {link['latency']}"))
    return facts + _why_no_times(result)


def _status(result: Result) -> str:
    return f"{result.status}: {result.reason}" if result.reason else result.status


def _received(result: Result, wire: Bits, unit: str, reference: str) -> str:
    # Nobody is there to receive what a single worker sends.
    got = f"{wire.per_step:,.0f} {unit}" if result.workers != 1 else "nothing: 1 worker"
    return got + _fewer(wire.ratio, reference)


def _throughput(result: Result) -> list[tuple[str, str]]:
    if (rate := result.samples_per_second) is None:
        return []
    words = f", {tokens:,.0f} tokens" if (tokens := result.tokens_per_second) else ""
    return [("throughput", f"{rate:,.0f} samples{words} per second")]


def _why_no_times(result: Result) -> list[tuple[str, str]]:
    if result.seconds is not None or result.workers is None:
        return []
    why = "virtual workers" if result.has_virtual_workers else "too few steps"
    return [("time", f"no times: {why}")]


def _fewer(ratio: float | None, reference: str) -> str:
    """Return how bits compare with those of a reference; there may be more of them, too."""
    if not ratio:
        return ""
    if ratio < 1:
        return f", {1 / ratio:.4g}x as many as {reference}"
    return f", {ratio:.2f}x fewer than {reference}"


def _error(error: CompressionError) -> str:
    """Return the error of an update y of what was coded, x; it has none if it has no scale."""
    cosine = f"cosine {_number(error.cosine, 3)}"
    if error.direction:
        return f"{cosine}; an update without a scale has no relative error"
    relative, vnmse = _number(error.relative, 3), _number(error.vnmse, 3)
    return f"{relative} relative (|y - x| / |x|), vNMSE {vnmse} (|y - x|^2 / |x|^2), {cosine}"


def _error_in_short(error: CompressionError) -> str:
    cosine = f"cosine {_number(error.cosine, 3)}"
    return cosine if error.direction else f"vNMSE {_number(error.vnmse, 3)}, {cosine}"


def _advice_on_more(result: Result, sent: Bits) -> str:
    """Return what to type if factors are larger than their matrices; empty if that is not why."""
    larger = sent.ratio and sent.ratio < 1 and result.config.get("min_ratio") == 0
    return "; type min_ratio=1" if larger else ""


def _title(result: Result) -> str:
    choices = describe_choices(result.choices)
    if result.workers is None:
        return choices
    return f"{choices}, {result.workers} workers, {result.launcher} on {result.device}"


def _scores(result: Result) -> list[tuple[str, str]]:
    test = result.test or {}
    split = _split(result)
    return [(f"{split} {name}", _score(name, test)) for name in SHOWN_SCORES if name in test]


def _split(result: Result) -> str:
    return "validation" if result.config["dataset"].get("split") == "valid" else "test"


def _target(result: Result) -> list[tuple[str, str]]:
    if (target := result.target) is None:
        return []
    what = f"{target.score} {target.value:g}"
    if target.epoch is None:
        return [("target", f"{what} never reached")]
    spent = [f"epoch {target.epoch:.4g}", f"step {target.step:,.0f}"]
    if target.received_bits is not None:
        spent.append(f"{target.received_bits / BITS_PER_MIB:,.4g} MiB received")
    spent += [f"{target.seconds:,.4g} s"] if target.seconds is not None else []
    ended = "; the run ended there" if result.config["trainer"].get("stop_at") is not None else ""
    return [("target", f"{what} first reached at {', '.join(spent)}{ended}")]


def _score(name: str, test: dict[str, float | None]) -> str:
    augmented = f"tta_{name}"
    views = f", {_number(test[augmented])} by test-time augmentation" if augmented in test else ""
    return f"{_number(test[name])} (best {_number(test[f'best_{name}'])}){views}"


def _number(value: float | None, digits: int = 4) -> str:
    """Return the number as text; in JSON files null stands for one that was not finite."""
    return "not finite" if value is None else f"{value:.{digits}g}"


def _phases(seconds: dict[str, Phase]) -> TextTable:
    rows = [
        [
            phase.replace("hidden_", "hidden "),
            f"{1e3 * value.mean:.3f} ms",
            f"{1e3 * value.max:.3f} ms",
        ]
        for phase, value in seconds.items()
        if value.max or not phase.startswith("hidden")  # nothing was hidden if it is 0
    ]
    return TextTable([], [["phase", "mean", "max over processes"], *rows])
