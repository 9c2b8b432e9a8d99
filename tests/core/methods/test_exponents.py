"""Lossless floats: every bit arrives, and exponents take their entropy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from backends import needs_compiler
from method_cases import aggregate, build_method, gradients

from gcbench.core.codecs.kernels import Backend, keep_backend, use_backend
from gcbench.core.codecs.noise import Noise
from gcbench.core.comm.collectives import Comm
from gcbench.core.methods.entropy_coded import Exponents

NOTHING = Noise(torch.zeros(1, 2, dtype=torch.int32), ((0, 1),))


def test_every_float_arrives_as_it_was_sent() -> None:
    """Also denormals, zeros of both signs, infinities and NaN, by eager and by native code."""
    needs_compiler()
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2, 3000), generator=generator).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor([[0.0, -0.0, 1e-45, torch.inf]] * 2)], 1)
    backends: tuple[Backend, ...] = ("eager", "native")
    with keep_backend():
        for backend in backends:
            use_backend(backend)
            for dtype, mask in ((torch.float32, -1), (torch.bfloat16, -(2**16))):
                codec = Exponents("fp32" if dtype == torch.float32 else "bf16")
                sent = x if dtype == torch.float32 else (x.view(torch.int32) & mask).view(x.dtype)
                sent = torch.where(sent.isnan(), 1.5, sent)  # a cast may change the bits of a NaN
                out = torch.full_like(sent, -0.0)  # which any zero, added to it, replaces
                codec.decode_add(codec.encode(sent, (sent.shape[1],), NOTHING), (3004,), out)
                assert torch.equal(out.view(torch.int32), sent.view(torch.int32))


def test_the_mean_is_that_of_an_fp32_all_reduce_or_of_rounded_gradients() -> None:
    grads = gradients(range(4), 0)
    exact = aggregate(build_method("exponents"), grads).update
    rounded = aggregate(build_method("exponents", format="bf16"), grads).update
    for name, g in grads.items():
        total = torch.zeros_like(g[:1])
        for row in g:
            total += row
        assert torch.equal(exact[name], total / 4)
        torch.testing.assert_close(rounded[name], g.bfloat16().float().mean(0, keepdim=True))


def test_a_value_takes_its_sign_its_mantissa_and_the_entropy_of_exponents() -> None:
    """The exponents of normal values have an entropy of 2.6 bits, whatever their scale."""
    n = 2**17
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(0))
    _, exponents = np.frexp(x[0].numpy())
    shares = np.unique(exponents, return_counts=True)[1] / n
    entropy = float(-(shares * np.log2(shares)).sum())
    assert entropy == pytest.approx(2.6, abs=0.1)
    for form, plain in (("fp32", 24), ("bf16", 8)):
        for scale in (1.0, 2.0**-60):
            comm = Comm(1)
            aggregate(build_method("exponents", format=form), {"x": scale * x}, comm=comm)
            bits = comm.meter.sent_bits[0] / n
            assert plain + entropy < bits < plain + 1.002 * entropy + 0.05
