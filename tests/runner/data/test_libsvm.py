"""LIBSVM's format: classes, scaling, compressed files, and real data sets."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nightly import slow_but
from omegaconf import OmegaConf
from torch.nn.functional import binary_cross_entropy_with_logits

from gcbench.papers.tables.tables import read_table
from gcbench.runner.data.libsvm import libsvm

ROWS = "".join(f"{2 * (row % 2) - 1} 1:{row} 3:7\n" for row in range(10))
CONF = Path(__file__).parents[3] / "conf" / "dataset"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "toy").write_text(ROWS)
    (tmp_path / "libsvm" / "toy.t").write_text("+1 2:5\n-1 1:18\n")
    return tmp_path / "libsvm"


def test_rows_become_dense_and_labels_classes(folder: Path) -> None:
    data = libsvm(str(folder.parent), "toy", features=4, test_file=True)
    assert (data.name, data.kind, data.shape, data.outputs, data.train_samples) == (
        "toy",
        "vector",
        (4,),
        2,
        10,
    )
    assert data.train[0][3].tolist() == [3, 0, 7, 0] and data.train[1].tolist() == [0, 1] * 5
    assert data.test[0].tolist() == [[0, 5, 0, 0], [18, 0, 0, 0]]
    assert data.test[1].tolist() == [1, 0]


def test_a_class_may_be_in_the_test_rows_alone(folder: Path) -> None:
    (folder / "toy.t").write_text("+1 1:5\n0 1:5\n-1 1:18\n")
    data = libsvm(str(folder.parent), "toy", features=4, test_file=True)
    assert data.outputs == 3 and data.test[1].tolist() == [2, 1, 0]
    assert data.train[1].tolist() == [0, 2] * 5


def test_scaled_by_the_training_range_alone(folder: Path) -> None:
    data = libsvm(str(folder.parent), "toy", features=4, scale=True, test_file=True)
    torch.testing.assert_close(data.train[0][:, 0], torch.linspace(-1, 1, 10))
    assert not data.train[0][:, 1:].any()  # constant features
    assert data.test[0][:, 0].tolist() == [-1, 3]


def test_targets_of_regression_keep_their_unit(folder: Path) -> None:
    (folder / "years").write_text("1999 1:1\n2010.5 1:2\n" * 5)
    data = libsvm(str(folder.parent), "years", features=1, task="regression")
    assert (data.task, data.outputs, data.train[1].shape) == ("regression", 1, (8, 1))
    assert set(data.train[1].flatten().tolist()) == {1999.0, 2010.5}


def test_a_fifth_is_the_test_part_where_no_file_is(folder: Path) -> None:
    data, again = (libsvm(str(folder.parent), "toy", features=4) for _ in range(2))
    assert (data.train_samples, len(data.test[0])) == (8, 2)
    assert sorted([*data.train[0][:, 0].tolist(), *data.test[0][:, 0].tolist()]) == list(range(10))
    assert torch.equal(data.test[0], again.test[0])


@pytest.mark.parametrize(("ending", "pack"), [("bz2", bz2.compress), ("xz", lzma.compress)])
def test_compressed_files(folder: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    (folder / f"packed.{ending}").write_bytes(pack(ROWS.encode()))
    data = libsvm(str(folder.parent), "packed", features=4)
    assert torch.equal(data.train[0], libsvm(str(folder.parent), "toy", features=4).train[0])


def test_missing_files_are_named(folder: Path) -> None:
    says = r"neither other nor other\.bz2 or \.xz in .*cjlin.*data\.root"
    with pytest.raises(ValueError, match=says):
        libsvm(str(folder.parent), "other", features=4)


REAL = [("a9a", 32_561, 16_281), ("w8a", 39_800, 9_949), ("mushrooms", 6_500, 1_624)]


@pytest.mark.parametrize(("name", "rows", "test_rows"), slow_but([REAL[2]], REAL))
def test_real_sets(name: str, rows: int, test_rows: int, real_root: Callable[[str], str]) -> None:
    node = OmegaConf.load(CONF / f"{name}.yaml")
    settings = {k: node[k] for k in ("name", "features", "task", "scale", "test_file")}
    data = libsvm(real_root("libsvm"), **settings)
    assert (data.train_samples, len(data.test[0]), data.outputs) == (rows, test_rows, 2)
    assert data.train[0].unique().tolist() == [0, 1]


OPTIMA = read_table("qsgd/svrg").figure.optimum or {}


@pytest.mark.parametrize("name", slow_but(["mushrooms"], sorted(OPTIMA)))
def test_the_figure_of_qsvrg_shows_the_distance_from_the_optimum(
    name: str, real_root: Callable[[str], str]
) -> None:
    """The optimum is the test loss at the minimum, found in float64 by L-BFGS."""
    node = OmegaConf.load(CONF / f"{name}.yaml")
    data = libsvm(real_root("libsvm"), name, node.features, test_file=node.test_file)
    (x, y), (test_x, test_y) = ((a.double(), b.double()) for a, b in (data.train, data.test))
    weights = torch.zeros(1 + node.features, dtype=torch.float64, requires_grad=True)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(x @ weights[1:] + weights[0], y)

    def objective() -> torch.Tensor:
        weights.grad = None
        value = loss(x, y) + 0.01 / 2 * weights @ weights
        value.backward()
        return value

    torch.optim.LBFGS(
        [weights], max_iter=500, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    ).step(objective)
    assert float(loss(test_x, test_y).detach()) == pytest.approx(OPTIMA[name], abs=1e-8)
