"""Proteins by random features."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gcbench.runner.data.protein import protein


def test_random_features_know_the_target_and_are_those_of_every_seed(real_root) -> None:
    data = protein(real_root("regression"))
    (x, y), (test_x, test_y) = data.train, data.test
    assert (data.task, data.outputs) == ("regression", 1)
    assert x.shape == (36_584, 90) and test_x.shape == (9_146, 90)
    assert x.abs().max() <= 1 and x.std(0).min() > 0.05
    torch.manual_seed(1)
    assert torch.equal(protein(real_root("regression")).train[0], x)
    weights = torch.linalg.lstsq(x.double(), y.double()).solution
    left = (test_x.double() @ weights - test_y).square().mean()
    assert left < 0.65 * test_y.var()


def test_a_file_that_is_missing_is_named_with_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no .*regression/protein\.csv\.gz; get it from https://"):
        protein(str(tmp_path))
