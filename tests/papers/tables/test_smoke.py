"""Every experiment, composed as a user types it, runs a few steps of two workers in this process.

Slow (`-m slow`): about 12 minutes for 230 experiments on one idle core. Experiments whose data are
not under data.root are skipped; LIBSVM's large data sets are replaced by small files of the same
format, since only the format matters here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from needed import skip

from gcbench.core.conf import Config
from gcbench.papers.tables.configs import compose
from gcbench.runner.config.choices import experiments
from gcbench.runner.launch.start import start
from gcbench.runner.records.files import RunFiles
from gcbench.runner.settings.config import RunConfig

FOLDERS = {
    "an4": "an4",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "gisette_mnist": "MNIST",
    "imagenet": "imagenet-mini",
    "mnist": "MNIST",
    "protein": "regression",
    "wikitext2": "wikitext-2",
}


def config_of(row: str) -> RunConfig:
    overrides = ("trainer.launcher=virtual", "trainer.threads=1", "logger.mode=disabled")
    return RunConfig.of(compose(row, "smoke", overrides).config)


def write_libsvm(folder: Path, dataset: Config) -> None:
    """Write a few rows with the data set's number of features, two of them nonzero."""
    folder.mkdir(parents=True)
    last = dataset["features"]
    for name, count in ((dataset["name"], 40), (f"{dataset['name']}.t", 10)):
        labels = [
            1990 + i % 7 if dataset["task"] == "regression" else (-1) ** i for i in range(count)
        ]
        lines = [
            f"{label} {1 + i % (last - 1)}:0.5 {last}:{i / count}\n"
            for i, label in enumerate(labels)
        ]
        (folder / name).write_text("".join(lines))


def with_data(config: RunConfig, directory: Path) -> RunConfig:
    """Return a configuration whose data are there, small files in place of LIBSVM's large ones."""
    name, dataset = config.choices["dataset"], config.dataset.as_dict()
    root = Path(dataset.get("root", "")).expanduser()
    if name in FOLDERS and not (root / FOLDERS[name]).is_dir():
        skip("data", f"there is no {FOLDERS[name]}/ in {root}")
    if "libsvm" in dataset["_target_"] and not any((root / "libsvm").glob(f"{dataset['name']}*")):
        write_libsvm(directory / "libsvm", dataset)
        here = config.dataset.model_copy(update={"root": str(directory)})
        return config.model_copy(update={"dataset": here})
    return config


@pytest.mark.slow
@pytest.mark.parametrize("row", experiments())
def test_it_runs(row: str, tmp_path: Path) -> None:
    config = config_of(row)
    assert config.experiment == row
    config = with_data(config, tmp_path / "data")
    start(config, str(tmp_path / "run"))
    result = RunFiles(tmp_path / "run").read_result()
    assert result is not None
    facts = (result.status, result.experiment, result.choices["budget"])
    assert facts == ("done", row, "smoke")
    assert result.bits_sent is not None
    assert result.bits_sent.per_worker > 0 or result.workers == 1
