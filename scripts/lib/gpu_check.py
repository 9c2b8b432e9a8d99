"""The command `gcbench check gpu`: what methods would do on a GPU, checked without one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from gcbench.core.codecs.launches import Launch
from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.runner.console import TextTable, print_table
from gcbench.runner.launch.instantiate import make_compressor
from lib.gpu_compiler import BYTES_PER_SECOND, CompiledCall, compile_call, missing
from lib.gpu_steps import (
    CANNOT_DO_WITHOUT,
    NCCL_TYPES,
    RANKS,
    Call,
    ObservedStep,
    observe_step,
)

# Kernels that reduce rows, which may be two loops: many blocks share a long row, and a second loop
# reduces their few results.
REDUCTIONS = {"max_norm", "mean_magnitude", "root_mean_square", "_means_of_sides"}

# Products of matrices, whose sums depend on the device in any case.
PRODUCTS = {"multiply", "multiply_out"}

# A thread codes up to 96 values at once. Up to this limit, spills stay below the 8 bytes per value
# that a second loop would move.
MOST_SPILLED_BYTES = 512

# Of the whole hook on a model of many tensors: a launch costs the host 10 to 40 us.
MOST_LAUNCHES = 40
FEW_VALUES = 64  # of kernels that may be several loops, such as those of what workers tell
MOST_BYTES = 2.5  # as a multiple of the fewest

# Methods that need more: the launches and multiples of bytes that they have now, and why.
NEED_MORE = {
    "values are clipped, or a residual is coded in bytes, in passes of their own": {
        "loco": (40, 3.7),
        "terngrad": (40, 3.4),
    },
    "blocks are coded by several kernels, and each worker's in turn": {
        "fp8": (101, 20.1),
        "mxfp4": (134, 31.2),
        "mxfp6": (135, 25.3),
        "mxfp8": (116, 19.8),
        "nvfp4": (362, 37.7),
    },
    "the entropy code is made on the host": {"exponents": (40, 3.5)},
    "it has eager passes": {
        "maxnorm": (40, 6.2),
        "maxnorm_multiscale": (66, 14.4),
        "natural": (67, 13.1),
        "onebit_adam": (265, 2.8),
        "signum": (40, 9.2),
    },
    "products of matrices for each shape, and eager steps on their factors": {
        "dion": (189, 5.6),
        "dion2": (715, 8.0),
        "unbiased_lowrank": (130, 2.9),
    },
    "positions have 64 bits, and each worker's values are added in turn": {
        "demo": (118, 23.0),
        "dgc": (410, 4.6),
        "ef21": (40, 4.2),
        "ef21_muon": (122, 5.7),
        "global_randk": (68, 32.6),
        "global_randk_multiscale": (97, 32.6),
        "random_block": (40, 2.8),
        "random_k": (54, 24.0),
        "sparseloco": (131, 23.7),
    },
    "a singular value decomposition for each matrix": {"atomo": (5504, 8.6)},
}


def shapes_of_resnet() -> dict[str, tuple[int, ...]]:
    """Return the shapes of ResNet-18's 62 parameters, with 11,173,962 values."""
    shapes: dict[str, tuple[int, ...]] = {}
    before = 3
    for stage, width in enumerate((64, 64, 128, 256, 512)):
        sides = [(before, 3)] if stage == 0 else [(before, 3), *[(width, 3)] * 3]
        sides += [(before, 1)] if before != width and stage else []
        for i, (inputs, size) in enumerate(sides):
            shapes[f"{stage}{i}"] = (width, inputs, size, size)
            shapes |= {f"{stage}{i}{name}": (width,) for name in ("scale", "shift")}
        before = width
    return shapes | {"linear": (10, before), "bias": (10,)}


SHAPES = shapes_of_resnet()
VALUES = sum(map(math.prod, SHAPES.values()))


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
        choice = name.removeprefix("compressor=").partition(" ")[0]  # without typed knobs
        known = (of[choice] for of in NEED_MORE.values() if choice in of)
        most = next(known, (MOST_LAUNCHES, MOST_BYTES))
        problems += [f"{name}: {problem}" for problem in size_problems(step, *most)]
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
            if not compiled.triton_kernels:  # it has no values here
                cells.append([call.name])
                continue
            cells.append(_kernel_cells(call, compiled))
            problems += [f"{name}: {problem}" for problem in kernel_problems(call, compiled)]
        rows += _side_by_side(cells)
        groups += [name] * (len(rows) - len(groups))
    headings = [
        "method",
        "launches per step",
        "bytes of the fewest",
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
        f"A step of compress on one of {RANKS} ranks of fake tensors, with the {len(SHAPES)} "
        f"parameters of ResNet-18, {VALUES:,} values; kernels for sm_90; nothing ran on a GPU.",
        "bytes: as a multiple of gradients, updates, messages and state, read and written once.",
        f"at least: a lower bound for 10,000,000 values, from bytes moved at "
        f"{BYTES_PER_SECOND / 1e12} TB/s, not a measurement.",
    ]
    if reason:
        notes.append(f"Skipped: compiling kernels. {reason}.")
    print_table(TextTable(headings, rows, {0, 3, 4}, groups=groups, notes=notes))
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


def largest_calls(calls: list[Call], kernels: Collection[str] = ()) -> list[Call]:
    """Return the largest call of each kernel; smaller calls are for a tensor's last values."""
    largest: dict[str, Call] = {}
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
    for place in sorted(step.uploads):
        yield f"the host copies to the GPU, and waits, in {place}"
    for dtype in sorted(map(str, step.exchanged - NCCL_TYPES)):
        yield f"a tensor of {dtype} is sent, which NCCL does not support"


def size_problems(
    step: ObservedStep, launches: int = MOST_LAUNCHES, times: float = MOST_BYTES
) -> Iterator[str]:
    """Yield what makes a step slow although nothing waits."""
    if step.launches > launches:
        yield f"{step.launches} launches a step, and {launches} are enough"
    if round(step.bytes_of_fewest, 1) > times:
        yield f"{step.bytes_of_fewest:.1f} times the fewest bytes, and {times:g} are enough"


def kernel_problems(call: Call, compiled: CompiledCall) -> Iterator[str]:
    """Yield what keeps a kernel from the speed of memory, or from the bits of eager kernels."""
    loops = len(compiled.triton_kernels)
    if loops > 1 + (call.name in REDUCTIONS) and call.values > FEW_VALUES:
        yield f"{call.name} is {loops} loops on a GPU, where one was meant"
    spilled = max(kernel.spilled_bytes for kernel in compiled.triton_kernels)
    if spilled > MOST_SPILLED_BYTES:
        yield f"{call.name} spills {spilled} bytes of registers a thread"
    inexact = {i for kernel in compiled.triton_kernels for i in kernel.inexact}
    if call.name in PRODUCTS or _adds_product(call):
        inexact -= {"fma.rn.f32"}
    for instruction in sorted(inexact):
        yield f"{call.name} uses {instruction}, which rounds differently from separate operations"


def _adds_product(call: Call) -> bool:
    """Return whether it adds alpha times a residual, unrounded as PyTorch's `add` does."""
    constants = call.constants if isinstance(call, Launch) else {}
    return constants.get("ALPHA", 1) != 1 or constants.get("KEEP", 0) != 0


def _method_cells(name: str, step: ObservedStep) -> list[str]:
    places = len(step.host_reads) + len(step.uploads)
    more = "+" if step.cut_short else ""
    bytes_moved = f"{step.bytes_of_fewest:.1f}"
    return [name, f"{step.launches}{more}", bytes_moved, f"{places} places" if places else "no"]


def _kernel_cells(call: Call, compiled: CompiledCall) -> list[str]:
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
