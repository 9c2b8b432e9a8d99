"""The command `gcbench check gpu`: what methods would do on a GPU, checked without one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gcbench.check.gpu_compiler import BYTES_PER_SECOND, CompiledCall, compile_call, missing
from gcbench.check.gpu_steps import (
    CANNOT_DO_WITHOUT,
    NCCL_TYPES,
    RANKS,
    KernelCall,
    ObservedStep,
    observe_step,
)
from gcbench.config import Config, ConfigError
from gcbench.console import TextTable, print_table
from gcbench.launch.instantiate import make_compressor

# Kernels that reduce rows, which may be two loops. Many blocks share a long row, and a second loop
# reduces their few results; `_signs_and_sums` also reduces columns to words, for which Inductor
# reads the values again.
REDUCTIONS = {"max_norm", "_sum", "_mean_of_magnitudes", "_signs_and_sums"}

# A thread codes up to 96 values at once. Up to this limit, spills stay below the 8 bytes per value
# that a second loop would move.
MOST_SPILLED_BYTES = 512

SHAPES = {"matrix": (1000, 1000)}
VALUES = 1000 * 1000


def check_gpu(methods: Mapping[str, Config], kernels: Collection[str] = ()) -> bool:
    """Print a table of the methods and their kernels, and return whether all is well.

    `kernels` are the names of the kernels to compile; without any, all are compiled. Raises
    ConfigError for a name that no method calls.
    """
    steps = {
        # Warnings about settings do not matter here.
        name: observe_step(make_compressor(node, quiet=True), SHAPES)
        for name, node in methods.items()
    }
    _refuse_unknown(kernels, steps)
    rows: list[list[str]] = []
    groups: list[str] = []
    problems: list[str] = []
    reason = missing()
    for name, step in steps.items():
        problems += [f"{name}: {problem}" for problem in step_problems(step)]
        cells = [_method_cells(name, step)]
        for call in largest_calls(step.kernel_calls, kernels):
            if reason:
                cells.append([call.name])
                continue
            try:
                compiled = compile_call(call)
            except Exception as error:  # from three compilers, each with errors of its own
                problems.append(f"{name}: {call.name} does not compile: {error}")
                continue
            cells.append(_kernel_cells(call, compiled))
            problems += [f"{name}: {problem}" for problem in kernel_problems(call, compiled)]
        rows += _side_by_side(cells)
        groups += [name] * (len(rows) - len(groups))
    headings = [
        "method",
        "launches per step",
        "host waits",
        "kernel",
        "loops",
        "registers",
        "spilled (bytes)",
        "shared (bytes)",
        "moved (bytes per value)",
        "at least (us)",
    ]
    notes = [
        f"A step on one of {RANKS} ranks of fake tensors, {VALUES:,} values in one matrix, "
        "kernels for sm_90; nothing ran on a GPU.",
        f"at least: a lower bound for 10,000,000 values, from bytes moved at "
        f"{BYTES_PER_SECOND / 1e12} TB/s, not a measurement.",
    ]
    if reason:
        notes.append(f"Skipped: compiling kernels. {reason}.")
    print_table(TextTable(headings, rows, {0, 2, 3}, groups=groups, notes=notes))
    for problem in problems:
        print(f"FAILED  {problem}", flush=True)
    return not problems


def _refuse_unknown(kernels: Collection[str], steps: Mapping[str, ObservedStep]) -> None:
    """Raise ConfigError for the name of a kernel that no step calls."""
    called = {call.name for step in steps.values() for call in step.kernel_calls}
    if unknown := set(kernels) - called:
        raise ConfigError(
            f"kernel={','.join(sorted(unknown))}: no step of {', '.join(steps)} calls it; type "
            f"{', '.join(sorted(called))}"
        )


def largest_calls(calls: list[KernelCall], kernels: Collection[str] = ()) -> list[KernelCall]:
    """Return the largest call of each kernel; smaller calls are for a tensor's last values."""
    largest: dict[str, KernelCall] = {}
    for call in calls:
        chosen = not kernels or call.name in kernels
        if chosen and (call.name not in largest or call.values > largest[call.name].values):
            largest[call.name] = call
    return list(largest.values())


def step_problems(step: ObservedStep) -> Iterator[str]:
    """Yield what a step does that it should not, or cannot, do on one of several GPUs."""
    for place, operation in step.host_reads.items():
        if place not in CANNOT_DO_WITHOUT:
            yield f"the host waits for the GPU in {place} ({operation})"
    for dtype in sorted(map(str, step.exchanged - NCCL_TYPES)):
        yield f"a tensor of {dtype} is sent, which NCCL does not support"


def kernel_problems(call: KernelCall, compiled: CompiledCall) -> Iterator[str]:
    """Yield what keeps a kernel from the speed of memory, or from the bits of eager kernels."""
    loops = len(compiled.triton_kernels)
    if loops > 1 + (call.name in REDUCTIONS):
        yield f"{call.name} is {loops} loops on a GPU, where one was meant"
    spilled = max(kernel.spilled_bytes for kernel in compiled.triton_kernels)
    if spilled > MOST_SPILLED_BYTES:
        yield f"{call.name} spills {spilled} bytes of registers a thread"
    for instruction in sorted({i for kernel in compiled.triton_kernels for i in kernel.inexact}):
        yield f"{call.name} uses {instruction}, which rounds differently from separate operations"


def _method_cells(name: str, step: ObservedStep) -> list[str]:
    waits = f"{len(step.host_reads)} places" if step.host_reads else "no"
    return [name, f"{step.launches}{'+' if step.cut_short else ''}", waits]


def _kernel_cells(call: KernelCall, compiled: CompiledCall) -> list[str]:
    kernels = compiled.triton_kernels
    return [
        call.name,
        str(len(kernels)),
        str(max(kernel.registers for kernel in kernels)),
        str(max(kernel.spilled_bytes for kernel in kernels)),
        str(max(kernel.shared_bytes for kernel in kernels)),
        f"{compiled.moved_bytes / call.values:.2f}",
        f"{compiled.seconds / call.values * 1e13:.1f}",
    ]


def _side_by_side(cells: list[list[str]]) -> list[list[str]]:
    """Return one row per kernel, with the method's cells in the first row only."""
    method, *kernels = cells
    blank = [""] * len(method)
    lines = [kernel + [""] * (7 - len(kernel)) for kernel in kernels or [[]]]
    return [[*(blank if i else method), *line] for i, line in enumerate(lines)]
