"""What methods would do on a GPU; no test here needs one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from gloo_pool import pool
from layout_cases import traces_over_gloo, traces_over_torchs_own
from lib.gpu_check import (
    check_gpu,
    kernel_problems,
    largest_calls,
    size_problems,
    step_problems,
)
from lib.gpu_compiler import compile_call, inexact_instructions, missing
from lib.gpu_steps import (
    CANNOT_DO_WITHOUT,
    KernelCall,
    ObservedStep,
    fake_tensors,
    observe_step,
)
from method_cases import CHOICES, DIFFERENT, compressor_of
from needed import lacks
from nightly import loop_over
from sentence import config_of
from torch.utils._triton import has_triton

from gcbench.core.codec import Codec
from gcbench.core.codecs.launches import Launch
from gcbench.core.codecs.tracing import COMPILER_OPTIONS
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Compressor, Grads, Properties, State, Step
from gcbench.core.errors import ConfigError
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.orq import ORQ, BinGradB, BinGradPB, EvenLevels, Linear
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build_exchange
from gcbench.runner.check.layouts import equal

SHAPES = {"matrix": (40, 70), "vector": (600,), "scalar": ()}
needs_triton = pytest.mark.skipif(missing() is not None, reason=lacks("triton", str(missing())))
WAITING = [  # methods and variants that together wait at every place of CANNOT_DO_WITHOUT
    ("atomo", "drawn once"),
    ("qsgd", "dense elias"),
    ("qsgd", "sparse elias"),
    ("qsgd", "ans, with residuals"),
    ("acpsgd", "all tensors"),
    ("eden", "adaptive"),
]
QUICK = [("qsgd", "summed"), ("powersgd", "all tensors"), ("top_k", "map of positions"), *WAITING]


@cache
def last_step(choice: str, variant: str) -> ObservedStep:
    return observe_step(compressor_of(choice, variant), SHAPES)


@loop_over(QUICK, [*QUICK, *sorted({*DIFFERENT} - {*QUICK})])
def test_a_step_waits_and_sends_as_it_may(choice: str, variant: str) -> None:
    assert not list(step_problems(last_step(choice, variant)))


def test_every_place_on_the_list_is_one_where_the_host_waits() -> None:
    places = {place for case in WAITING for place in last_step(*case).host_reads}
    assert CANNOT_DO_WITHOUT.keys() <= places


@dataclass(frozen=True)
class Careless:
    """A method that reads a value back to the host, and sends a type that NCCL lacks."""

    properties: ClassVar[Properties] = Properties()

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if float(grads["matrix"].sum()) > 0:
            comm.sum([grads["matrix"].to(torch.int16)])
        weights = torch.tensor([0.5, 0.5], device="cuda")
        update = {name: g * weights.sum() for name, g in grads.items()}
        return Aggregated(update, lambda: update, state)


def test_waits_and_a_type_that_nccl_lacks_are_problems() -> None:
    problems = list(step_problems(observe_step(Careless(), SHAPES)))
    assert problems == [
        "the host waits for the GPU in test_check_gpu.py aggregate (aten._local_scalar_dense)",
        "the host copies to the GPU, and waits, in test_check_gpu.py aggregate",
        "a tensor of torch.int16 is sent, which NCCL does not support",
    ]


@dataclass(frozen=True)
class Wasteful:
    """A method that launches five kernels for each tensor, and passes over it as often."""

    properties: ClassVar[Properties] = Properties()

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        update = dict(zip(grads, comm.mean(list(grads.values())), strict=True))
        for _ in range(5):
            update = {name: 2 * x for name, x in update.items()}
        return Aggregated(update, lambda: update, state)


def test_launches_and_bytes_of_the_whole_hook_are_limited() -> None:
    shapes = {f"tensor {i}": (1000, i + 1) for i in range(16)}
    step = observe_step(Dense(), shapes)
    # The hook divides sums, and reads the means to check them; it writes only where one is bad.
    assert [*size_problems(step)] == []
    assert step.launches <= 15
    values = sum(1000 * (i + 1) for i in range(16))
    assert step.floor_bytes == pytest.approx(4 * 4 * values, rel=0.01)
    assert step.moved_bytes == pytest.approx(3 * 4 * values, rel=0.01)
    assert observe_step(Dense("float16"), shapes).launches <= 17
    many, bytes_moved = size_problems(observe_step(Wasteful(), shapes))
    assert many == "91 launches a step, and 40 are enough"
    assert bytes_moved == "4.3 times the fewest bytes, and 2.5 are enough"


def check_kernels(compressor: Compressor, kernels: tuple[str, ...] = ()) -> None:
    calls = largest_calls(observe_step(compressor, {"matrix": (256, 512)}).kernel_calls)
    chosen = [call for call in calls if not kernels or call.name in kernels]
    assert len(chosen) >= len(kernels)
    for call in chosen:
        assert not list(kernel_problems(call, compile_call(call)))


def test_a_kernel_that_no_step_calls_is_named() -> None:
    methods = {"qsgd": config_of("compressor=qsgd").compressor}
    with pytest.raises(ConfigError, match="kernel=nosuch: no step of qsgd calls it; type _mix"):
        check_gpu(methods, ["nosuch"])


@needs_triton
def test_a_kernel_is_one_loop_on_a_gpu() -> None:
    has_triton()  # PyTorch caches "no" here, as in an earlier compilation for the CPU
    check_kernels(compressor_of("terngrad", "as it is"), ("join_digits", "decode_buckets"))


@needs_triton
def test_what_rounds_otherwise_than_eager_kernels_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_triton()
    with fake_tensors():
        x = torch.empty(1000, device="cuda")
    compiled = KernelCall(lambda x: x * 3.3 + x, (x,), {})
    step = observe_step(compressor_of("qsgd", "as it is"), {"matrix": (256, 512)})
    (written,) = largest_calls(step.kernel_calls, ("decode_buckets",))
    assert not [*kernel_problems(compiled, compile_call(compiled))]
    assert not [*kernel_problems(written, compile_call(written))]
    monkeypatch.delitem(COMPILER_OPTIONS, "emulate_precision_casts")
    monkeypatch.setattr(Launch, "options", {"enable_fp_fusion": True})
    for call in (compiled, written):
        (problem,) = kernel_problems(call, compile_call(call))
        assert problem.startswith(f"{call.name} uses fma.rn.f32")


def test_approximate_instructions_are_found_in_ptx() -> None:
    exact = ["fma.rn.f64", "mul.f32", "div.rn.f32", "sqrt.rn.f32", "cvt.rmi.ftz.f32.f32"]
    inexact = ["add.ftz.f32", "div.full.f32", "fma.rn.f32", "sqrt.approx.ftz.f32"]
    lines = [f"\t@%p1 {instruction} \t%r1, %r2;" for instruction in [*exact, *inexact]]
    assert inexact_instructions("\n".join(lines)) == tuple(inexact)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_every_kernel_is_one_loop_on_a_gpu(choice: str) -> None:
    check_kernels(compressor_of(choice, "as it is"))


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_triton_computes_the_bits_of_eager_kernels(choice: str) -> None:
    script = Path(__file__).parents[1] / "support" / "interpreted.py"
    command = [sys.executable, str(script), choice]
    scripts = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "scripts")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=scripts)
    assert done.returncode == 0, done.stderr[-2000:]


def test_methods_over_the_calls_of_nccl_on_three_ranks() -> None:
    cases = [
        ("qsgd", "scattered"),
        ("qsgd", "summed"),
        ("qsgd", "dense elias"),
        ("powersgd", "as it is"),
        ("maxnorm", "as it is"),
        ("top_k", "as it is"),
    ]
    compressors = {case: compressor_of(*case) for case in cases}
    over_nccl = pool(3).run(traces_over_torchs_own, compressors, 3)
    over_gloo = pool(3).run(traces_over_gloo, compressors, 3)
    for seen, expected in zip(over_nccl, over_gloo, strict=True):
        for case in cases:
            assert all(map(equal, seen[case].updates, expected[case].updates)), case
            assert seen[case].sent_bits == expected[case].sent_bits, case


def test_a_step_of_many_small_tensors_is_at_most_60_launches() -> None:
    """Short buckets are fitted, coded and decoded together, however many tensors there are."""
    shapes = {str(k): (100 * k + 1, 3) for k in range(40)} | {"large": (600, 500)}
    methods: list[Codec] = [
        *(Linear(9), BinGradB(), BinGradPB(), EvenLevels(level_count=5)),
        *(QSGD(7, bucket_size=512), ORQ(3)),
    ]
    steps = {repr(m): observe_step(build_exchange(m, "gather"), shapes) for m in methods}
    assert {name: step.launches for name, step in steps.items() if step.launches > 60} == {}
    assert not any(step.host_reads for step in steps.values())
    summed = observe_step(build_exchange(QSGD(7), "sum"), shapes)
    assert summed.launches <= 60 and not summed.host_reads
