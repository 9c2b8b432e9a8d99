"""Kernels compiled by Inductor, Triton and its ptxas for an H100, without having one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import fx

from gcbench.core.codecs.launches import Launch
from gcbench.core.codecs.tracing import compile_graph, trace_call
from lib.gpu_steps import Call, bytes_of, fake_tensors

# Products added without rounding them first, approximate functions, and subnormals taken as zero.
# Floor (cvt.rmi) is exempt, although it takes them as zero, too: this changes its result only for
# negative subnormals, and a code's floor gets one only if a draw in [0, 1) is exactly 0.
_INEXACT = re.compile(
    r"(?<![\w.])(?!cvt\.rmi)(fma\.rn\.f32|[a-z]\w*(?:\.\w+)*?\.(?:full|approx|ftz)(?:\.\w+)*)\s"
)

BYTES_PER_SECOND = 4.3e12  # between the 3.35e12 of an H100's data sheet and an H200's 4.8e12

_H100 = SimpleNamespace(
    name="NVIDIA H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    warp_size=32,
    total_memory=80 << 30,
    L2_cache_size=50 << 20,
    gcnArchName="",
)


class TritonKernel(NamedTuple):
    """A cubin for sm_90, in the configuration with the fewest spills and registers."""

    registers: int
    spilled_bytes: int  # the stack of a thread
    shared_bytes: int  # per block
    inexact: tuple[str, ...]  # instructions that round differently from separate operations


class CompiledCall(NamedTuple):
    """The kernels that one call launches, and the fewest bytes that they can move."""

    triton_kernels: list[TritonKernel]
    moved_bytes: int  # inputs read once, outputs written once

    @property
    def seconds(self) -> float:
        """Return a lower bound of the time: that of moving the bytes."""
        return self.moved_bytes / BYTES_PER_SECOND


def missing() -> str | None:
    """Return why nothing can be compiled for a GPU here, or None."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} was built without CUDA; install a wheel for CUDA"
    if find_spec("triton") is None:
        return "there is no triton, which comes with PyTorch's wheels for CUDA on Linux"
    return None


def compile_call(call: Call) -> CompiledCall:
    """Return a kernel's call, compiled. Raises what Inductor, Triton or ptxas raise."""
    if isinstance(call, Launch):
        return _compile_launch(call)
    with fake_tensors(), _pretend_h100() as autotuners:
        graph, _ = trace_call(call.function, (call.args, call.kwargs))
        compile_graph(
            graph,
            joint_graph_constant_folding=False,  # folding would run a kernel
            use_static_cuda_launcher=False,
            compile_threads=1,
            force_disable_caches=True,
        )
    return CompiledCall([_smallest(autotuner) for autotuner in autotuners], _moved_bytes(graph))


def _compile_launch(launch: Launch) -> CompiledCall:
    import triton
    from triton.compiler import ASTSource

    from gcbench.core.codecs import triton_kernels

    function = getattr(triton_kernels, launch.name)
    given = dict(zip(function.arg_names, launch.args, strict=False)) | launch.constants
    types = {  # an argument of None or 1 is a constant, as where Triton launches it
        name: "constexpr"
        if name in launch.constants or x is None or (isinstance(x, int) and x == 1)
        else triton.runtime.jit.mangle_type(x, specialize=False)
        for name, x in given.items()
    }
    constants = {name: x for name, x in given.items() if types[name] == "constexpr"}
    source = ASTSource(function, types, constants)
    with _triton_driver():
        kernel = triton.compile(
            source, target=FakeDriver().get_current_target(), options=launch.options
        )
    moved = sum(map(bytes_of, [*launch.reads, *launch.writes]))
    return CompiledCall([_resources(kernel)], moved)


@contextmanager
def _triton_driver() -> Iterator[None]:
    """Let Triton compile for an H100."""
    import triton

    driver = triton.runtime.driver
    before = getattr(driver, "_active", None)
    driver.set_active(FakeDriver())
    try:
        yield
    finally:
        driver._active = before


class FakeDriver:
    """A stand-in for Triton's driver that answers what compilers ask."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def is_active(self) -> bool:
        return True


@contextmanager
def _pretend_h100() -> Iterator[list[Any]]:
    """Make Inductor compile for an H100; yields the autotuners of the kernels it has compiled."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import async_compile
    from torch._inductor.codecache import _load_triton_kernel_from_source
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils._triton import has_triton

    known = {k: v for k, v in vars(_H100).items() if k in DeviceProperties._fields}
    properties = DeviceProperties(type="cuda", index=0, cc=90, **known)
    autotuners: list[Any] = []

    def compile_triton(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        autotuner = _load_triton_kernel_from_source(name, source)
        autotuner.precompile(warm_cache_only=True)
        autotuners.append(autotuner)
        return autotuner

    answers: list[tuple[Any, str, Any]] = [
        (async_compile.AsyncCompile, "triton", compile_triton),
        (triton_helpers, "set_driver_to_gpu", lambda: None),
        (DeviceProperties, "create", lambda device: properties),
        (CudaInterface, "is_available", lambda: True),
        (CudaInterface, "get_compute_capability", lambda device=None: 90),
        (CudaInterface, "get_device_properties", lambda device=None: _H100),
        (CudaInterface, "raise_if_triton_unavailable", lambda device=None: None),
        (CudaInterface.Worker, "current_device", lambda: 0),
        (CudaInterface.Worker, "get_device_properties", lambda device=None: _H100),
        (torch.cuda, "get_device_properties", lambda device=None: _H100),
        (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
        (torch.cuda, "current_device", lambda: 0),
    ]
    with ExitStack() as stack:
        has_triton.cache_clear()  # an earlier compilation may have filled it
        stack.callback(has_triton.cache_clear)
        for owner, name, answer in answers:
            static = isinstance(owner, type) and name != "triton"
            replaced = staticmethod(answer) if static else answer
            stack.enter_context(mock.patch.object(owner, name, replaced))
        stack.enter_context(_triton_driver())
        yield autotuners


def _smallest(autotuner: Any) -> TritonKernel:
    """Return the leanest configuration; on a GPU, the autotuner would choose the fastest."""
    kernels = [result.kernel for result in autotuner.compile_results]
    return min(
        map(_resources, kernels), key=lambda kernel: (kernel.spilled_bytes, kernel.registers)
    )


def _resources(kernel: Any) -> TritonKernel:
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", lines)}
    inexact = inexact_instructions(kernel.asm["ptx"])
    return TritonKernel(usage["REG"], usage["STACK"], kernel.metadata.shared, inexact)


def inexact_instructions(ptx: str) -> tuple[str, ...]:
    """Return the instructions of a kernel that round differently from separate operations."""
    return tuple(sorted(set(_INEXACT.findall(ptx))))


def _moved_bytes(graph: fx.GraphModule) -> int:
    """Return the bytes that a graph reads and writes, counting each value once."""
    moved = 0
    for node in graph.graph.find_nodes(op="placeholder"):
        mutations = [user for user in node.users if _mutates(user, node)]
        copies = (torch.ops.aten.copy_.default, torch.ops.aten.copy.default)
        overwritten = [u for u in node.users if u.target in copies and u.args[0] is node]
        size = bytes_of(node.meta["val"])
        moved += size * (len(mutations) > 0) + size * (len(node.users) > len(overwritten))
    (output,) = graph.graph.find_nodes(op="output")
    return moved + sum(bytes_of(node.meta["val"]) for node in output.all_input_nodes)


def _mutates(user: fx.Node, node: fx.Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    return schema is not None and schema.is_mutable and user.args[0] is node
