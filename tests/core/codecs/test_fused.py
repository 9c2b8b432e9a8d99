"""Hand-written Triton has the bits of eager code: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from lib.gpu_compiler import missing
from needed import lacks
from nightly import each, slow_but

from gcbench.core.codecs import kernels, launches
from gcbench.core.codecs.kernels import backend_in_use

ROOT = Path(__file__).parents[3]
OTHERS = ["hook", "eden", "top_k", "powersgd"]
CODECS = ["qsgd", "qsgd of any bits", "signs", "bingrad", "levels", "nearest", "normal"]
needs_triton = pytest.mark.skipif(missing() is not None, reason=lacks("triton", str(missing())))


@needs_triton
@pytest.mark.parametrize("name", slow_but(["qsgd", *OTHERS], [*CODECS, *OTHERS]))
def test_triton_has_the_bits_of_eager_code(name: str) -> None:
    compare(name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=lacks("gpu", "there is none"))
@each("name", [*CODECS, *OTHERS])
def test_a_gpu_has_the_bits_of_eager_code(name: str) -> None:
    compare("--gpu", name)


def compare(*arguments: str) -> None:
    command = [sys.executable, str(ROOT / "tests/support/interpreted_codecs.py"), *arguments]
    scripts = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=scripts)
    assert done.returncode == 0, done.stderr[-2000:]


def test_codecs_are_eager_where_triton_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise RuntimeError("no ptxas")

    monkeypatch.setattr(launches, "_compile_one", fails)
    monkeypatch.setattr(kernels, "_backend", "compiled")
    for may_fall_back in (False, True):
        monkeypatch.setattr(kernels, "_may_fall_back", may_fall_back)
        with nullcontext() if may_fall_back else pytest.raises(RuntimeError, match="no ptxas"):
            assert not launches.runs_on(torch.device("cuda"))
    assert backend_in_use() == "eager" and "no ptxas" in caplog.text


def test_a_cpu_does_not_import_triton() -> None:
    text = "import sys, gcbench.core.methods.qsgd, gcbench.core.library.exchange as _; "
    text += "sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text]).returncode == 0
