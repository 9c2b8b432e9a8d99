"""Gradients for studies, which are recorded once."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence import run


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of gradients from a training on digits: two windows of six steps."""
    directory: Path = tmp_path_factory.mktemp("recorded")
    steps = [*range(6), *range(40, 46)]
    arguments = [
        "model=mlp",
        "model.widths=[64]",
        "compressor=none",
        "trainer.workers=2",
        "trainer.batch_size=32",
    ]
    run(
        directory,
        *arguments,
        "trainer.max_steps=46",
        "optimizer.lr=0.3",
        "trainer.launcher=virtual",
        f"trainer.record_gradients={steps}".replace(" ", ""),
    )
    return str(directory / "gradients")
