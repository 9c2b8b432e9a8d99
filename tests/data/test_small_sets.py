"""The two data sets that need no files."""

from __future__ import annotations

import pytest
import torch

from gcbench.data.digits import digits
from gcbench.data.synthetic import synthetic


def test_digits_split_is_fixed_and_stratified() -> None:
    data = digits()
    assert (data.train_samples, len(data.test[0]), data.shape, data.kind) == (1437, 360, (1, 8, 8), "image")
    assert torch.equal(data.test[0], digits().test[0])
    counts = data.test[1].bincount()
    assert len(counts) == 10 and counts.min() >= 34


def test_digits_are_standardised() -> None:
    images, _ = digits().batch(epoch=0, step=0, worker=0, workers=1, batch_size=1437, seed=0)
    assert abs(float(images.mean())) < 1e-5 and abs(float(images.std()) - 1) < 1e-5


@pytest.mark.parametrize("fraction", [0, 1, -0.5])
def test_digits_refuses_an_empty_split(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"dataset\.test_fraction=.*0\.2"):
        digits(fraction)


def test_synthetic_classes_come_from_one_teacher() -> None:
    data = synthetic(samples=2000, features=5, outputs=3, noise=0.0)
    assert (data.task, data.shape, data.kind, len(data.test[0])) == ("classification", (5,), "vector", 400)
    assert torch.equal(data.train[1], synthetic(samples=2000, features=5, outputs=3, noise=0.0).train[1])
    solution = torch.linalg.lstsq(data.train[0], torch.nn.functional.one_hot(data.train[1]).float()).solution
    accuracy = ((data.test[0] @ solution).argmax(1) == data.test[1]).float().mean()
    assert accuracy > 0.9


def test_synthetic_regression_has_the_noise_asked_for() -> None:
    data = synthetic("regression", samples=2000, features=5, outputs=1, noise=0.1, seed=4)
    assert data.task == "regression" and data.train[1].shape == (2000, 1)
    solution = torch.linalg.lstsq(*data.train).solution
    assert float((data.test[0] @ solution - data.test[1]).std()) == pytest.approx(0.1, rel=0.15)


def test_synthetic_refuses_other_tasks() -> None:
    with pytest.raises(ValueError, match=r"dataset\.task=ranking.*classification or regression"):
        synthetic("ranking")  # type: ignore[arg-type]
