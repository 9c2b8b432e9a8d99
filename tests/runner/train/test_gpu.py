"""Whole runs on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from needed import lacks
from sentence import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=lacks("gpu", "there is none")),
]
OVERRIDES = ("trainer.device=cuda", "trainer.epochs=3")


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("compressor", ["none", "qsgd", "powersgd", "orq", "scaled_sign", "top_k"])
def test_a_run_learns(compressor: str, backend: str, tmp_path: Path) -> None:
    result = run(
        tmp_path,
        *OVERRIDES,
        f"compressor={compressor}",
        f"trainer.codec_backend={backend}",
        "trainer.workers=1",
    )
    facts = (result["status"], result["device"], result["codec_backend"])
    assert facts == ("done", "cuda", backend)
    assert result["test"]["accuracy"] > 50
    assert result["seconds"]["step"]["mean"] > 0


@pytest.mark.parametrize(
    "overrides",
    [("trainer.compile=true",), ("trainer.precision=bf16",), ("trainer.double_buffering=true",)],
)
def test_a_run_learns_by_other_means(overrides: tuple[str, ...], tmp_path: Path) -> None:
    result = run(tmp_path, *OVERRIDES, "compressor=powersgd", "trainer.workers=1", *overrides)
    assert (result["status"], result["device"]) == ("done", "cuda")
    assert result["test"]["accuracy"] > 50
