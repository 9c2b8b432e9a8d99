"""CIFAR and MNIST: files are read, downloaded or asked for."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import URLError

import numpy as np
import pytest
import torch
from nightly import slow_but
from small_cifar10 import write_cifar10
from torchvision import datasets

from gcbench.runner.data import ArrayData
from gcbench.runner.data.vision import cifar10, cifar100, mnist


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: datasets.CIFAR10 | datasets.MNIST) -> NoReturn:
        Path(getattr(self, "raw_folder", self.root)).mkdir(parents=True, exist_ok=True)
        raise URLError("no route\nto host")

    monkeypatch.setattr(datasets.CIFAR10, "download", fail)
    monkeypatch.setattr(datasets.MNIST, "download", fail)


# Four images, the values of which count up.
ROWS = np.arange(4 * 3072, dtype=np.uint8).reshape(4, 3072)
LABELS = [3, 1, 4, 1]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("factory", "folder"),
    [(cifar10, "cifar-10-batches-py"), (cifar100, "cifar-100-python"), (mnist, "MNIST/raw")],
)
def test_missing_files_are_explained(
    factory: Callable[..., ArrayData], folder: str, tmp_path: Path
) -> None:
    says = rf"no files under .*no route to host.*put {folder}/ there.*data\.root"
    with pytest.raises(ValueError, match=says):
        factory(str(tmp_path / "new" / "data"))
    assert list(tmp_path.iterdir()) == []  # the folders of a failed download are gone


def test_nothing_is_fetched_unless_allowed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dataset=cifar10: .*dataset\.download=false"):
        cifar10(str(tmp_path), download=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("offline")
def test_unofficial_files_are_read_with_a_warning(tmp_path: Path) -> None:
    write_cifar10(tmp_path, ROWS, LABELS)
    with pytest.warns(UserWarning, match="not the official ones"):
        data = cifar10(str(tmp_path), augment=False)
    assert (data.train_samples, data.shape, data.outputs) == (20, (3, 32, 32), 10)
    images, targets = data.test_batch(0, 4)
    assert targets.tolist() == [3, 1, 4, 1]
    raw = torch.arange(3 * 1024).view(3, 32, 32) % 256 / 255
    expected = (raw[1] - 0.4822) / 0.2435
    torch.testing.assert_close(images[0, 1], expected)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.filterwarnings("ignore:.*not the official ones")
@pytest.mark.parametrize(
    "content", [pickle.dumps({"data": Hostile()}), pickle.dumps([1]), b"\x80\x04\x95", b""]
)
def test_an_unofficial_file_runs_nothing_and_is_named(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path, ROWS, LABELS)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(ValueError, match=r"data_batch_2 is not a CIFAR file \(.*fetch it again"):
        cifar10(str(tmp_path))
    assert not (tmp_path / "ran").exists()


REAL = [
    (cifar10, "cifar-10-batches-py", 50_000),
    (cifar100, "cifar-100-python", 50_000),
    (mnist, "MNIST/raw", 60_000),
]


@pytest.mark.filterwarnings("ignore:.*not the official ones")
@pytest.mark.parametrize(("factory", "folder", "samples"), slow_but([REAL[0]], REAL))
def test_real_images_are_complete_and_standardized(
    factory: Callable[..., ArrayData], folder: str, samples: int, real_root: Callable[[str], str]
) -> None:
    data = factory(real_root(folder), download=False)
    assert (data.train_samples, len(data.test[0])) == (samples, 10_000)
    assert int(data.train[1].max()) + 1 == data.outputs
    # These are test images, standardized by the mean and deviation of the training images.
    deviation, mean = torch.std_mean(data.test_batch(0, 4000)[0], dim=(0, 2, 3))
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=0.05, rtol=0)
    torch.testing.assert_close(deviation, torch.ones_like(deviation), atol=0.05, rtol=0)
