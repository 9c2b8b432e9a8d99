"""Forward and backward passes in bfloat16, on CPUs with and without instructions for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from platform import machine
from typing import Any

import pytest
import torch
from nightly import each
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gcbench.runner.models.gpt import GPT
from gcbench.runner.models.lstm import LSTM
from gcbench.runner.records.clock import Clock
from gcbench.runner.settings.groups import TrainerSettings
from gcbench.runner.train import precision
from gcbench.runner.train.precision import ProductsInFp32, autocast_bf16
from gcbench.runner.train.replica import Replica

BF16 = torch.bfloat16
aten = torch.ops.aten


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "conv2d": (F.conv2d, (drawn(2, 3, 8, 8), drawn(4, 3, 3, 3), drawn(4))),
    "conv1d": (F.conv1d, (drawn(2, 3, 8), drawn(4, 3, 3))),
    "linear": (F.linear, (drawn(5, 7), drawn(3, 7), drawn(3))),
    "matmul": (lambda a, b: a @ b, (drawn(5, 7), drawn(7, 3))),
    "bmm": (torch.bmm, (drawn(2, 5, 7), drawn(2, 7, 3))),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), (drawn(5, 7), drawn(3, 7))),
    "attention": (F.scaled_dot_product_attention, (drawn(1, 2, 5, 4),) * 3),
}


class Operands(TorchDispatchMode):
    """A context that collects the dtypes of the operands of products, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in (
            aten.convolution,
            aten.convolution_backward,
            aten.mm,
            aten.addmm,
            aten.bmm,
            aten.mkldnn_rnn_layer,
            aten.mkldnn_rnn_layer_backward,
            aten._scaled_dot_product_flash_attention_for_cpu,
            aten._scaled_dot_product_flash_attention_for_cpu_backward,
        ):
            seen = self.types.setdefault(func.overloadpacket.__name__, set())
            seen |= {leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
        return func(*args, **(kwargs or {}))


def passes(
    function: Callable[..., Tensor], operands: tuple[Tensor, ...], weights: Tensor
) -> list[Tensor]:
    """Return the result under autocast, and the gradients of the operands."""
    leaves = [operand.clone().requires_grad_() for operand in operands]
    with torch.autocast("cpu", BF16):
        result = function(*leaves)
    assert result.dtype is BF16
    (result.float() * weights).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@each("name", CASES)
def test_products_in_fp32_are_those_of_bf16(name: str) -> None:
    """They differ from torch's own only in the order of sums, by one rounding at most."""
    function, operands = CASES[name]
    exact = function(*(operand.double() for operand in operands))
    weights = drawn(*exact.shape)
    own = passes(function, operands, weights)
    with ProductsInFp32(), Operands() as seen:
        ours = passes(function, operands, weights)
    assert seen.types and all(BF16 not in types for types in seen.types.values())
    for one, other in zip(ours, own, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-7, atol=2**-7 * float(other.abs().max()))
    rounded = function(*(operand.to(BF16).double() for operand in operands))
    torch.testing.assert_close(ours[0].double(), rounded, rtol=2**-8, atol=1e-5)
    with pytest.raises(AssertionError):  # as operands are rounded to bf16
        torch.testing.assert_close(ours[0].double(), exact, rtol=2**-14, atol=1e-6)


def test_what_autocast_leaves_alone_stays_as_it_is() -> None:
    matrix = drawn(8, 8)
    with ProductsInFp32():
        assert (matrix @ matrix).dtype is torch.float32
        with torch.autocast("cpu", BF16):
            assert (matrix.double() @ matrix.double()).dtype is torch.float64
            with torch.autocast("cpu", enabled=False):
                assert (matrix @ matrix).dtype is torch.float32


def test_compiled_models_multiply_in_fp32_too() -> None:
    layer, inputs = nn.Linear(8, 4), drawn(3, 8)
    compiled = torch.compile(layer, backend="aot_eager")
    with torch.autocast("cpu", BF16), ProductsInFp32():
        assert torch.equal(compiled(inputs), layer(inputs))


TOKENS = torch.arange(12).view(2, 6)
IMAGES, CLASSES = drawn(4, 3, 8, 8), torch.arange(4)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], str]] = {
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4)),
        (IMAGES, CLASSES),
        "convolution_backward",
    ),
    "gpt": (
        lambda: GPT(12, width=8, layers=1, heads=2, context=6, dropout=0.0),
        (TOKENS, TOKENS),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "lstm": (
        lambda: LSTM(12, width=8, layers=1, dropout=0.0),
        (TOKENS, TOKENS),
        "mkldnn_rnn_layer_backward",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_cpu_without_instructions_for_bf16_gets_no_product_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: False)
    make, batch, product = MODELS[name]
    settings = TrainerSettings(workers=1, batch_size=4, epochs=1, precision="bf16")
    task = "classification" if name == "convolution" else "language"
    torch.manual_seed(0)
    replica = Replica(make(), task, range(1), torch.device("cpu"), settings)
    replica.begin()
    with Operands() as operands:
        loss = replica.backward(0, batch, (1, 0), Clock(torch.device("cpu")))
        replica.evaluate(batch[0], None)
    assert product in operands.types
    assert all(BF16 not in types for types in operands.types.values()), operands.types
    settings = settings.model_copy(update={"precision": "fp32"})
    in_fp32 = Replica(replica.model, task, range(1), torch.device("cpu"), settings)
    in_fp32.begin()
    plain = in_fp32.backward(0, batch, (1, 0), Clock(torch.device("cpu")))
    assert loss == pytest.approx(float(plain), rel=0.02) and loss != plain
    torch.testing.assert_close(replica.flat, in_fp32.flat, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("fast", [True, False])
def test_a_cpu_with_instructions_for_bf16_gets_its_products(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: fast)
    with Operands() as operands, autocast_bf16("cpu"):
        F.linear(drawn(5, 7), drawn(3, 7))
    assert (operands.types["mm"] == {BF16}) == fast


@pytest.mark.skipif(machine() != "x86_64", reason="asks Linux for flags of an x86 processor")
def test_what_has_fast_bf16_has_avx512() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    assert precision.has_fast_bf16() == ("avx512bw" in flags and "avx512vl" in flags)
