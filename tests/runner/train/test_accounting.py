"""The data per epoch in PowerSGD (Vogels et al. 2019) follows from one step of 16 workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from needed import skip
from sentence import run

DATA = Path(os.environ.get("GCBENCH_DATA", "~/gcbench-data")).expanduser()
ONE_STEP = [
    *"trainer.workers=16 trainer.launcher=virtual".split(),
    *"trainer.max_steps=1 trainer.eval_every=null".split(),
]

pytestmark = pytest.mark.slow


def needs(folder: str) -> None:
    if not (DATA / folder).is_dir():
        skip("data", f"there is no {folder} in {DATA}")


@pytest.mark.parametrize(
    ("sentence", "floats", "mib"),
    [
        ("compressor=none", 11_173_962, 1023.0),
        ("compressor=powersgd rank=1", 45_935, 4.2),
        ("compressor=powersgd rank=2", 82_260, 7.5),
        ("compressor=powersgd rank=4", 154_910, 14.2),
        ("compressor=powersgd rank=7", 263_885, 24.2),
    ],
)
def test_resnet18_on_cifar10(tmp_path: Path, sentence: str, floats: int, mib: float) -> None:
    needs("cifar-10-batches-py")
    overrides = ["model=resnet18", "dataset=cifar10", f"data.root={DATA}", "trainer.batch_size=128"]
    result = run(tmp_path, *ONE_STEP, *overrides, *sentence.split())
    assert result["steps_per_epoch"] == 24
    assert result["bits_sent"]["per_step"] == 32 * floats
    assert round(result["bits_sent"]["per_epoch_mib"], 1) == mib


@pytest.mark.parametrize(("rank", "floats"), [(1, 93_488), (2, 142_507), (4, 240_545)])
def test_lstm_on_wikitext2(tmp_path: Path, rank: int, floats: int) -> None:
    needs("wikitext-2")
    overrides = [
        *"model=lstm model.vocabulary=28869 dataset=wikitext2".split(),
        f"data.root={DATA}",
        "trainer.batch_size=1",
    ]
    result = run(tmp_path, *ONE_STEP, *overrides, "compressor=powersgd", f"rank={rank}")
    assert result["parameters"] == 28_949_319
    assert result["bits_sent"]["per_step"] == 32 * floats
