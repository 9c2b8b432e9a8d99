"""gcbench.codec: buffers to bytes and back, as compress sends them."""

from __future__ import annotations

import pytest
import torch

import gcbench
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State, Step
from gcbench.core.errors import ConfigError
from gcbench.core.library.compress import make_method

METHODS = ("qsgd", "eden", "top_k", "natural", "qsgd_levels", "orq", "scaled_sign", "mxfp4", "bf16")
N, WORKERS = 5000, 3


def rows() -> torch.Tensor:
    return torch.randn(WORKERS, N, generator=torch.Generator().manual_seed(1))


def test_bytes_and_means_are_those_of_an_exchange() -> None:
    for name in METHODS[:-1]:  # bf16 is added on the wire there
        code = gcbench.codec(name, seed=7)
        messages = [code.encode(x, step=5, worker=w) for w, x in enumerate(rows())]
        out = torch.zeros(N)
        for w, message in enumerate(messages):
            code.decode_add(message, out, step=5, worker=w)
        knobs = {"error_feedback": False} if name == "top_k" else {}
        if name != "scaled_sign":
            knobs["min_size"] = 0
        method, _ = make_method(name, knobs)
        comm = Comm(WORKERS)
        step = Step(5, 7, range(WORKERS), {"w": 0})
        update = method.aggregate({"w": rows()}, State(), comm, step).update["w"][0]
        assert torch.equal(out / WORKERS, update), name
        sent = comm.meter.totals_by_worker[0].values()
        assert 8 * code.size(N) == sum(one.sent_bits for one in sent), name


def test_a_residual_has_what_the_message_leaves_out() -> None:
    x, old = rows()[0], 0.1 * rows()[1]
    for name in METHODS:
        code, residual, decoded = gcbench.codec(name), old.clone(), torch.zeros(N)
        message = code.encode(x, step=0, worker=1, offset=9, residual=residual)
        assert message.dtype == torch.uint8 and message.shape == (code.size(N),)
        code.decode_add(message, decoded, step=0, worker=1, offset=9)
        assert torch.allclose(decoded + residual, x + old, atol=1e-5), name
        assert torch.equal(x, rows()[0])


def test_draws_differ_by_worker_step_offset_and_seed() -> None:
    x, first = rows()[0], {"step": 0, "worker": 0, "offset": 0}
    base = gcbench.codec("qsgd").encode(x, **first)
    others = [{**first, key: 1} for key in first]
    assert all(not torch.equal(gcbench.codec("qsgd").encode(x, **o), base) for o in others)
    assert not torch.equal(gcbench.codec("qsgd", seed=2).encode(x, **first), base)
    assert torch.equal(gcbench.codec("qsgd", codec_backend="eager").encode(x, **first), base)


@pytest.mark.parametrize("name", ["powersgd", "maxnorm", "signum", "onebit_adam", "exponents"])
def test_what_is_no_code_of_one_worker_is_refused(name: str) -> None:
    more = {"momentum": 0.9, "dense_steps": 0} if name == "onebit_adam" else {}
    with pytest.raises(ConfigError, match=f"compressor={name}.*: this is not the code of one"):
        gcbench.codec(name, **more)


def test_wrong_buffers_are_named() -> None:
    with pytest.raises(ConfigError, match="min_size=10: this is not the code"):
        gcbench.codec("qsgd", min_size=10)
    code = gcbench.codec("qsgd", bits=8)
    message = code.encode(torch.ones(10), step=0, worker=0)
    for x in (torch.ones(10).half(), torch.ones(2, 5), torch.ones(20)[::2]):
        with pytest.raises(ValueError, match="values: .*type a contiguous float32 tensor"):
            code.encode(x, step=0, worker=0)
    with pytest.raises(ValueError, match=r"message: .*\[14\] is not the code of 11 values"):
        code.decode_add(message, torch.zeros(11), step=0, worker=0)
