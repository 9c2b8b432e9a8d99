"""gisette rebuilt from MNIST."""

from __future__ import annotations

import pytest
import torch

from gcbench.runner.data.gisette import gisette_from_mnist


@pytest.mark.slow
def test_half_of_the_features_say_nothing_of_the_class(real_root) -> None:
    data = gisette_from_mnist(real_root("MNIST"), download=False)
    for (inputs, labels), rows in ((data.train, 6000), (data.test, 1000)):
        assert inputs.shape == (rows, 5000) and labels.bincount().tolist() == [rows // 2] * 2
        assert inputs.min() == -1 and inputs.max() == 1
    inputs, labels = data.train
    gaps = (inputs[labels == 1].mean(0) - inputs[labels == 0].mean(0)).abs()
    noise = inputs.std(0) * (2 / 3000) ** 0.5 + 1e-6
    real, probes = (gaps / noise).split(2500)
    assert probes.max() < 5 and real.quantile(0.75) > 5
    # A probe has the values of its feature in another order.
    assert torch.equal(inputs[:, 7].sort().values, inputs[:, 2507].sort().values)
