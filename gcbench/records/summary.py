"""What a person sees of a run: progress while it goes, a short table at its end."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

MIB = 8 * 2**20


class ProgressDisplay:
    """A bar on a terminal, a plain line for every record elsewhere."""

    def __init__(self, total_steps: int, console: Console, enabled: bool) -> None:
        self._console = console
        self._enabled = enabled
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=not (enabled and console.is_terminal))
        self._task = self._bar.add_task("training", total=total_steps)

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, line: dict[str, Any]) -> None:
        if not self._enabled:
            return
        values = [f"{name} {line[name]:.4g}" for name in ("loss", "accuracy", "perplexity", "lr") if name in line]
        text = f"{line['event']} step {line['step']} epoch {line['epoch']:.2f}: " + ", ".join(values)
        self._bar.update(self._task, completed=line["step"], description=", ".join(values[:2]))
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)


def print_summary(result: dict[str, Any], directory: Path, console: Console) -> None:
    """Status, scores, bits, time by phase, where the files are."""
    table = Table(show_header=False, box=None, pad_edge=False)
    reason = f": {result['reason']}" if result.get("reason") else ""
    table.add_row("status", f"{result['status']}{reason}")
    for name, text in _facts(result):
        table.add_row(name, text)
    table.add_row("files", str(directory))
    console.print(table, soft_wrap=True, highlight=False)


def _facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    choices = " ".join(result["choices"][k] for k in ("model", "dataset", "compressor"))
    facts = [("run", f"{choices}, {result['workers']} workers, {result['launcher']} on {result['device']}")]
    facts += [(f"test {name}", text) for name, text in _scores(result["test"] or {})]
    sent = result["bits_sent"]
    facts.append(("bits sent", f"{sent['per_worker'] / MIB:.1f} MiB a worker, {sent['per_step'] / 8 / 1024:.1f} KiB a step"))
    if sent["ratio"]:
        facts.append(("ratio", f"{sent['ratio']:.2f} x fewer than fp32"))
    if error := result["compression_error"]:
        facts.append(("compression error", f"{error['relative']:.3g} relative, cosine {error['cosine']:.3g}"))
    return facts + _times(result["seconds"], result["workers"] > result["processes"])


def _scores(test: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, f"{_number(test[name])} (best {_number(test[f'best_{name}'])})")
        for name in ("accuracy", "perplexity", "loss")
        if name in test
    ]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _times(seconds: dict[str, dict[str, float]] | None, virtual: bool) -> list[tuple[str, str]]:
    if seconds is None:
        return [("time", "none: virtual workers have no times" if virtual else "none: too few steps")]
    parts = [f"{phase} {1e3 * value['mean']:.2f}" for phase, value in seconds.items() if phase != "step"]
    return [("time of a step", f"{1e3 * seconds['step']['mean']:.2f} ms: " + ", ".join(parts))]
