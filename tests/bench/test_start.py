"""A benchmark says in one sentence what the machine lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gcbench.bench.start import bench
from gcbench.config import ConfigError
from gcbench.launch.plan import Machine


def words(**more: Any) -> dict[str, Any]:
    return {"workers": [], "device": "cpu", "codec_backend": "eager", **more}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"codec_backend": "compiled"},
            r"codec_backend=compiled: there is no C\+\+ compiler here; .* codec_backend=eager",
        ),
        ({"device": "cuda"}, "device=cuda: there is no CUDA device here; type device=cpu"),
    ],
)
def test_what_is_not_here_is_named(
    asked: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "detect", staticmethod(lambda: Machine(2, 0, {}, compiler=False)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=message):
        bench(words(**asked), str(tmp_path))
