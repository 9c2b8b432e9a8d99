"""Block formats: every value is the nearest of its format, by the formats' tables in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from backends import needs_compiler
from method_cases import build_method
from numpy.typing import NDArray
from torch import Tensor

from gcbench.core.codecs.floats import FORMATS, of_float_codes, to_float_codes
from gcbench.core.codecs.kernels import Backend, keep_backend, use_backend
from gcbench.core.compressor import Grads
from gcbench.core.methods.block_formats import Microscaling
from gcbench.core.wrappers.virtual import aggregate

Values = NDArray[np.float64]

SHAPES = {"matrix": (20, 33), "vector": (7,), "blocks": (64,), "scalar": ()}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e3m2": 28.0, "e2m3": 7.5, "e2m1": 6.0}
# Method and its settings: format, values of a block, type of its scale.
CASES = [
    ("fp8", {}, "e4m3", 4096, "float32"),
    ("fp8", {"format": "e5m2", "bucket_size": 50}, "e5m2", 50, "float32"),
    ("mxfp8", {}, "e4m3", 32, "e8m0"),
    ("mxfp8", {"format": "e5m2"}, "e5m2", 32, "e8m0"),
    ("mxfp6", {}, "e2m3", 32, "e8m0"),
    ("mxfp6", {"format": "e3m2"}, "e3m2", 32, "e8m0"),
    ("mxfp4", {}, "e2m1", 32, "e8m0"),
    ("nvfp4", {}, "e2m1", 16, "e4m3"),
]


def table(form: str) -> Values:
    """Return all magnitudes of a format in order, from its numbers of bits."""
    exponent_bits, mantissa_bits = int(form[1]), int(form[3])
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    found = [
        np.ldexp(m / steps + (e > 0), max(e, 1) - bias)
        for e in range(2**exponent_bits)
        for m in range(steps)
    ]
    return np.array([x for x in found if x <= LARGEST[form]])


def nearest(x: Values, form: str) -> Values:
    """Return the nearest value of a format, of two the one with an even code; none is above it."""
    values = table(form)
    above = np.searchsorted(values, np.abs(x)).clip(1, len(values) - 1)
    low, high = values[above - 1], values[above]
    up = (np.abs(x) - low > high - np.abs(x)) | (
        (np.abs(x) - low == high - np.abs(x)) & (above % 2 == 0)
    )
    return np.copysign(np.where(up, high, low), x)


PUBLISHED = {"e2m1": 2, "e2m3": 2}  # with the exponents of their largest elements


def reference(x: Tensor, form: str, size: int, scale: str) -> Values:
    """Return what a tensor becomes, block by block; quotients are rounded to float32."""
    flat = x.flatten().double().numpy()
    of_tensor = np.float32(np.float32(np.abs(flat).max()) / np.float32(LARGEST[form] * 448))
    out = np.empty_like(flat)
    for start in range(0, len(flat), size):
        block = flat[start : start + size]
        most = np.abs(block).max()
        if scale == "float32":
            unit = float(np.float32(most) / np.float32(LARGEST[form]))
        elif scale == "e8m0":
            power = np.ceil(np.log2(most / LARGEST[form])) if most else 0
            if form in PUBLISHED:  # the scale of the papers' algorithm 1
                power = np.floor(np.log2(most or 1)) - PUBLISHED[form]
            unit = 2.0**power
        else:
            share = np.float32(most) / np.float32(LARGEST[form]) / of_tensor
            unit = float(np.float32(nearest(np.array([share], dtype=float), "e4m3")[0]) * of_tensor)
        scaled = (block.astype(np.float32) / np.float32(unit or 1)).astype(float)
        codes = nearest(scaled, form).astype(np.float32)
        out[start : start + size] = codes * np.float32(unit)
    return out


def draw(seed: int) -> Grads:
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(1, *s, generator=generator) ** 3 for k, s in SHAPES.items()}


def backends() -> Iterator[Backend]:
    needs_compiler()
    with keep_backend():
        for backend in ("eager", "native"):
            use_backend(backend)
            yield backend


def test_every_value_is_the_nearest_of_its_format() -> None:
    for backend in backends():
        for choice, settings, *form in CASES:
            grads = draw(len(choice))
            grads["blocks"][:, 32:48] = 0
            update = aggregate(build_method(choice, **settings), grads).update
            for name, g in grads.items():
                expected = reference(g, *form)
                equal = update[name].flatten().double().numpy() == expected
                assert equal.all(), (backend, choice, settings, name)


def test_codes_are_those_of_torchs_own_types() -> None:
    exponents = torch.arange(-40, 20).float().repeat_interleave(400)
    x = torch.randn(len(exponents), generator=torch.Generator().manual_seed(0)) * exponents.exp2()
    for form, dtype in {
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
    }.items():
        y = x.clamp(-LARGEST.get(form, torch.inf), LARGEST.get(form, torch.inf))
        whole = torch.uint8 if form in LARGEST else torch.int16
        codes = to_float_codes(y, FORMATS[form])
        assert torch.equal(codes.to(whole), y.to(dtype).view(whole)), form
        if form in LARGEST:
            assert torch.equal(of_float_codes(codes, FORMATS[form]), y.to(dtype).float()), form
    # Scales of e8m0, of which torch has the values.
    _, scales = build_method("mxfp8").inner.codec.encode(x.view(1, -1), (len(x),), None)  # type: ignore[attr-defined]
    most = x.view(-1, 32).abs().amax(1)
    powers = scales[0].view(torch.float8_e8m0fnu).float()
    assert (most <= 448 * powers).all() and (most > 224 * powers).all()


def test_the_scale_of_each_element_type_is_the_better_of_two() -> None:
    """That of the papers, which cuts elements off, or the least one that cuts none."""
    draw = torch.Generator().manual_seed(0)
    signs = torch.randn(1, 2**17, generator=draw).sign()
    laplace = torch.empty(1, 2**17).exponential_(generator=draw) * signs
    for choice, settings, *_ in (case for case in CASES if case[0].startswith("mx")):
        codec = build_method(choice, **settings).inner.codec  # type: ignore[attr-defined]
        errors = {}
        for scale in ("power_up", "power_down"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Microscaling, "scale", scale)
                update = aggregate(build_method(choice, **settings), {"x": laplace}).update["x"]
            errors[scale] = float((update - laplace).square().sum())
        assert codec.scale == min(errors, key=lambda scale: errors[scale]), (choice, settings)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_errors_are_those_that_others_have_measured(rounding: str) -> None:
    """vNMSE of normal and of Laplace's values: of an independent program with torch's types."""
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(1, 2**19, generator=generator) - 0.5
    x = {
        "normal": torch.randn(1, 2**19, generator=generator),
        "laplace": -uniform.sign() * torch.log1p(-2 * uniform.abs()),
    }
    measured: dict[tuple[str, str], dict[str, float]] = {
        ("fp8", "nearest"): {"normal": 7.0e-4, "laplace": 7.0e-4},
        ("mxfp8", "nearest"): {"normal": 7.1e-4, "laplace": 7.1e-4},
        ("mxfp8", "stochastic"): {"normal": 1.4e-3, "laplace": 1.4e-3},
        ("mxfp4", "nearest"): {"normal": 1.32e-2, "laplace": 1.60e-2},
        ("mxfp4", "stochastic"): {"normal": 2.7e-2, "laplace": 3.6e-2},
        ("nvfp4", "nearest"): {"normal": 9.1e-3, "laplace": 8.6e-3},
        ("nvfp4", "stochastic"): {"normal": 1.9e-2, "laplace": 1.8e-2},
    }
    with keep_backend():
        use_backend("native")
        for (choice, kind), errors in measured.items():
            for name, expected in errors.items():
                if kind != rounding:
                    continue
                update = aggregate(build_method(choice, rounding=kind), {"x": x[name]}).update["x"]
                error = float((update - x[name]).square().sum() / x[name].square().sum())
                assert error == pytest.approx(expected, rel=0.02), (choice, name)


def test_rounding_by_chance_goes_to_both_neighbors_as_often_as_it_should() -> None:
    """The mean of draws is the value, between two neighbors of the format, and below the normal."""
    for backend in backends():
        for choice, settings, form, *_ in CASES:
            values = table(form)
            x = torch.full((1, 32 * 500), 0.0)
            k = torch.arange(32 * 500) % 32
            shares = torch.tensor([0.3, 0.7]).repeat(16)[k]
            places = (k * (len(values) - 2) // 32).clamp(max=len(values) - 2)
            low, high = (torch.tensor(values, dtype=torch.float32)[places + i] for i in (0, 1))
            x[0] = low + shares * (high - low)
            x[0, k == 0] = values[-1]  # so that the scale is a power of two, or one
            x[0, k == 16] = values[-1]
            options: dict[str, Any] = {**settings, "rounding": "stochastic"}
            sent = aggregate(build_method(choice, **options), {"x": x}).update["x"][0]
            inner = (k > 0) & (k != 16)
            assert ((sent == low) | (sent == high))[inner].all(), (backend, choice)
            up = (sent == high).float().view(-1, 32).mean(0)
            inner = inner[:32]
            error = (up - shares[:32])[inner]
            assert error.abs().max() < 5 * 0.5 / 500**0.5, (backend, choice, settings)
            assert abs(error.mean()) < 0.01


@pytest.mark.slow
def test_compiled_is_eager_to_the_bit() -> None:
    needs_compiler()
    grads = draw(3)
    with keep_backend():
        for choice, options in (("nvfp4", {}), ("mxfp8", {"rounding": "stochastic"})):
            seen = []
            backends: tuple[Backend, ...] = ("eager", "compiled")
            for backend in backends:
                use_backend(backend)
                seen.append(aggregate(build_method(choice, **options), grads).update)
            assert all(torch.equal(seen[0][k], seen[1][k]) for k in grads)
