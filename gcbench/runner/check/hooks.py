"""`gcbench check MODULE:HOOK`: all checks of a DDP communication hook, with one line for each."""

from __future__ import annotations

import importlib
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gcbench.core.errors import ConfigError, near
from gcbench.runner.check.contract import demand
from gcbench.runner.check.hook_steps import (
    CASES,
    NAN_STEP,
    WARM_UP,
    Case,
    Failed,
    HookSubject,
    Seen,
    keeps_growing,
    left_behind,
    mean_gradient,
    read,
    required_parameters,
    take_all_steps,
)
from gcbench.runner.check.report import print_line
from gcbench.runner.config.compose import method_node
from gcbench.runner.launch.instantiate import look_here_for
from gcbench.runner.launch.local import run_processes

ALIKE = 1.5  # factors of the mean that may be applied with 2, 3 and 5 workers
OFF = 0.05  # of the bytes that TCP counts: its messages have heads
HEADS = 2048  # bytes of a step, for a hook that sends little

Runs = dict[int, list[Seen | Failed]]
"""What the processes saw in a case, by their number."""


def hook_subject_of(targets: Sequence[str], settings: Sequence[str]) -> HookSubject:
    """Return the hook of `my_module:my_hook`, or of `my_module:make rank=2`."""
    if len(targets) > 1:
        raise ConfigError(f"{targets[1]}: type {targets[0]}'s settings as key=value, as in rank=2")
    module_name, _, name = targets[0].partition(":")
    try:
        look_here_for(module_name)
        module = importlib.import_module(module_name)
    except Exception as error:  # raised by somebody else's code
        raise ConfigError(f"{targets[0]}: {module_name} cannot be imported: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        advice = near(name, vars(module)) or "a function that it has"
        raise ConfigError(f"{targets[0]}: {module_name} has no function {name}; type {advice}")
    knobs: Mapping[str, Any] = method_node("", settings)
    knobs = {k: v for k, v in knobs.items() if k != "_target_"}
    needed = required_parameters(function)
    if needed == 2 and not knobs:
        return HookSubject(module_name, name, {})
    if needed == 2:
        raise ConfigError(
            f"{settings[0]}: {name} is a hook, whose state is None; type a function that takes the "
            "process group and settings, and returns (state, hook)"
        )
    try:
        inspect.signature(function).bind(None, **knobs)
    except TypeError as error:
        raise ConfigError(
            f"{' '.join(targets)}: a hook takes state and bucket, and what makes one takes the "
            f"process group and these settings, but of {name}: {error}"
        ) from error
    return HookSubject(module_name, name, knobs)


def check_hook(subject: HookSubject, cases: Mapping[str, Case] = CASES) -> bool:
    """Print one line per check of these cases, and return whether all is well."""
    with tempfile.TemporaryDirectory() as folder:
        run_processes(take_all_steps, (subject, folder, cases), 1)
        runs = {
            name: {size: seen for size in case.sizes if (seen := read(folder, name, size))}
            for name, case in cases.items()
        }
    held = []
    for line, (name, check) in CHECKS.items():
        if name not in cases:
            continue
        of_case = runs[name]
        held.append(
            print_line(line, {f"{n} workers": partial(check, name, of_case[n]) for n in of_case})
        )
        if name == "steps" and held[-1]:
            held.append(print_line("the mean, of any workers", {"": partial(_check_mean, of_case)}))
    return all(held)


def _check_run(name: str, processes: Sequence[Seen | Failed]) -> None:
    """Check that no process failed, that all apply the same, and finite numbers but for NaN."""
    failures = [seen for seen in processes if isinstance(seen, Failed)]
    demand(not failures, min(failures).reason if failures else "")
    first, *others = [seen.updates for seen in processes if isinstance(seen, Seen)]
    for other in others:
        same = (first == other) | (first.isnan() & other.isnan())
        wrong = (~same).any(1).nonzero().flatten().tolist()
        demand(
            not wrong,
            f"step {wrong[0] if wrong else 0}: ranks apply different updates; an update is "
            "computed from what all workers have, in the same order",
        )
    if CASES[name].kind != "NaN":
        demand(first.isfinite().all(), "an update is not finite")


def _updates(name: str, processes: Sequence[Seen | Failed]) -> Tensor:
    _check_run(name, processes)
    return next(seen.updates for seen in processes if isinstance(seen, Seen))


def _check_adds_up(name: str, processes: Sequence[Seen | Failed]) -> str:
    """Check that a hook with error feedback loses nothing; say what another one loses."""
    updates, workers = _updates(name, processes), len(processes)
    one, left = (
        mean_gradient(CASES[name], workers),
        left_behind(CASES[name], updates, workers),
    )
    rest = float(left[-1] / one.norm())
    memory = next((seen.memory for seen in processes if isinstance(seen, Seen)), "")
    if not keeps_growing(left, one):
        steps = f", after {len(left)} steps" if len(left) > CASES[name].steps else ""
        return f"{rest:.2g} of one gradient is left behind{steps}"
    lost = f"of {len(left)} equal gradients, {rest:.3g} are left behind, and more with each step"
    demand(not memory, f"{lost}, although the state has {memory}")
    return f"no: {lost}, as without error feedback"


def _check_mean(runs: Runs) -> str:
    """Check that updates are the mean of the workers' gradients, however many there are."""
    factors = {}
    for size, processes in runs.items():
        mean = mean_gradient(CASES["steps"], size)
        steps = _updates("steps", processes).double()
        factors[size] = float(steps.mean(0) @ mean / (mean @ mean))
    times = ", ".join(f"{factor:.3g}" for factor in factors.values())
    told = f"{times} times the mean gradient with {', '.join(map(str, factors))} workers"
    demand(
        min(factors.values()) > 0 and max(factors.values()) < ALIKE * min(factors.values()),
        f"updates are {told}: they are divided by the number of workers that sent a value",
    )
    return told


def _check_buckets(name: str, processes: Sequence[Seen | Failed]) -> None:
    """Check that the update of each bucket is like its own gradient, and none of the others."""
    case = CASES[name]
    updates = _updates(name, processes).double().sum(0).view(len(case.shapes), -1)
    means = mean_gradient(case, len(processes)).view_as(updates)
    likeness = torch.nn.functional.cosine_similarity(updates[:, None], means[None], dim=2)
    for bucket, row in enumerate(likeness):
        demand(
            row.argmax() == bucket and row[bucket] > 0,
            f"the update of {list(case.shapes)[bucket]} is most like the gradient of "
            f"{list(case.shapes)[int(row.argmax())]}",
        )


def _check_tensors(name: str, processes: Sequence[Seen | Failed]) -> None:
    updates = _updates(name, processes)
    demand(updates.any(), f"the updates of {len(updates)} equal gradients are zero")


def _check_nan(name: str, processes: Sequence[Seen | Failed]) -> str:
    updates = _updates(name, processes)
    later = updates[NAN_STEP + 1 :]
    demand(
        later.isfinite().all(),
        f"{len(later)} steps later, updates are still not finite: it stays in the state",
    )
    seen = not updates[NAN_STEP].isfinite().all()
    return "it is in the update" if seen else "it is not in the update: GradScaler cannot see it"


def _check_bytes(name: str, processes: Sequence[Seen | Failed]) -> str:
    """Check what the state says it has sent by what the kernel's TCP counts.

    Of two workers, each sends in an all-reduce, a gather or an all-to-all what it has, once.
    """
    _check_run(name, processes)
    case = CASES[name]
    counted = case.steps - WARM_UP
    values = sum(torch.Size(shape).numel() for shape in case.shapes.values()) * counted
    whole = [seen for seen in processes if isinstance(seen, Seen)]
    sent = max(seen.sent for seen in whole)
    demand(sent > 0, "nothing: workers share no gradients")
    told = f"{8 * sent / values:.4g} bits per value, by the kernel's count"
    for seen in whole:
        if seen.claimed is not None:
            demand(
                abs(seen.claimed - seen.sent) <= OFF * seen.sent + HEADS * counted,
                f"{8 * seen.sent / values:.4g} bits per value, by the kernel's count, but its "
                f"state says {8 * seen.claimed / values:.4g}",
            )
            told = f"{told}, as its state says"
            break
    return told


CHECKS: dict[str, tuple[str, Callable[[str, list[Seen | Failed]], str | None]]] = {
    "2, 3 and 5 workers apply the same": ("steps", _check_run),
    "nothing is lost in 60 steps": ("many steps", _check_adds_up),
    "eight buckets, with late workers": ("eight buckets", _check_buckets),
    "unused parameters": ("unused", _check_run),
    "empty tensors": ("empty", _check_tensors),
    "0-d tensors": ("0-d", _check_tensors),
    "tensors of uneven lengths": ("uneven", _check_tensors),
    "tensors that are not contiguous": ("non-contiguous", _check_tensors),
    "zeros": ("zeros", _check_run),
    "NaN of one worker": ("NaN", _check_nan),
    "sends": ("bytes", _check_bytes),
}
"""The lines, each with the case that its check reads."""
