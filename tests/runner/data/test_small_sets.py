"""The two data sets that need no files."""

from __future__ import annotations

import pytest
import torch
from nightly import each

from gcbench.runner.data import Data
from gcbench.runner.data.digits import digits
from gcbench.runner.data.synthetic import synthetic, synthetic_rows


def test_digits_split_is_fixed_and_stratified() -> None:
    data = digits()
    facts = (data.train_samples, len(data.test[0]), data.shape, data.kind)
    assert facts == (1437, 360, (1, 8, 8), "image")
    assert torch.equal(data.test[0], digits().test[0])
    counts = data.test[1].bincount()
    assert len(counts) == 10 and counts.min() >= 34


def test_digits_are_standardized() -> None:
    images, _ = digits().batch(epoch=0, step=0, worker=0, workers=1, batch_size=1437, seed=0)
    assert abs(float(images.mean())) < 1e-5 and abs(float(images.std()) - 1) < 1e-5


@each("fraction", [0, 1, -0.5])
def test_digits_refuses_an_empty_split(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"dataset\.test_fraction=.*0\.2"):
        digits(fraction)


def test_synthetic_classes_come_from_one_teacher() -> None:
    data = synthetic(samples=2000, features=5, outputs=3, noise=0.0)
    assert (data.task, data.shape, data.kind, len(data.test[0])) == (
        "classification",
        (5,),
        "vector",
        400,
    )
    assert torch.equal(
        data.train[1], synthetic(samples=2000, features=5, outputs=3, noise=0.0).train[1]
    )
    solution = torch.linalg.lstsq(
        data.train[0], torch.nn.functional.one_hot(data.train[1]).float()
    ).solution
    accuracy = ((data.test[0] @ solution).argmax(1) == data.test[1]).float().mean()
    assert accuracy > 0.9


def test_synthetic_regression_has_the_noise_asked_for() -> None:
    data = synthetic("regression", samples=2000, features=5, outputs=1, noise=0.1, seed=4)
    assert data.task == "regression" and data.train[1].shape == (2000, 1)
    solution = torch.linalg.lstsq(*data.train).solution
    assert float((data.test[0] @ solution - data.test[1]).std()) == pytest.approx(0.1, rel=0.15)
    assert data.optimum is not None
    torch.testing.assert_close(data.optimum, solution.T, atol=0.02, rtol=0)


def test_synthetic_classes_have_no_optimum() -> None:
    assert synthetic(samples=20).optimum is None


def test_synthetic_rows_are_made_on_demand() -> None:
    data = synthetic_rows(samples=1000, features=6, noise=0.1, seed=3)
    where = {"epoch": 0, "step": 1, "workers": 4, "batch_size": 50, "seed": 0}
    inputs, targets = data.batch(worker=2, **where)
    assert isinstance(data, Data) and (data.task, data.kind, data.shape, data.outputs) == (
        "regression",
        "vector",
        (6,),
        1,
    )
    assert inputs.shape == (50, 6) and targets.shape == (50, 1)
    assert inputs.dtype == targets.dtype == torch.float32
    assert torch.equal(
        inputs, synthetic_rows(samples=1000, features=6, seed=3).batch(worker=2, **where)[0]
    )
    assert not torch.equal(
        inputs, synthetic_rows(samples=1000, features=6, seed=4).batch(worker=2, **where)[0]
    )


def test_synthetic_rows_come_from_their_optimum() -> None:
    data = synthetic_rows(samples=1000, features=6, noise=0.1)
    everything = data.batch(epoch=0, step=0, worker=0, workers=1, batch_size=1000, seed=0)
    assert len(everything[0].unique(dim=0)) == 1000
    solution = torch.linalg.lstsq(*everything).solution
    torch.testing.assert_close(data.optimum, solution.T, atol=0.02, rtol=0)
    inputs, targets = data.test_batch(0, 1000)
    assert (len(inputs), data.test_batches(64)) == (200, 4)
    assert float((inputs @ data.optimum.T - targets).std()) == pytest.approx(0.1, rel=0.2)
    assert not any((row == everything[0]).all(1).any() for row in inputs)
