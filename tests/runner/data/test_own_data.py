"""A user's tensors and torch data sets become a Data, or an error that says what to return."""

from __future__ import annotations

import pytest
import torch
from nightly import each
from torch.utils.data import TensorDataset

from gcbench.runner.data import ArrayData, as_data

IMAGES, VECTORS = torch.rand(6, 1, 4, 4), torch.rand(6, 3)
LABELS, VALUES = torch.tensor([0, 1, 2, 0, 1, 2]), torch.rand(6)


def convert(inputs: torch.Tensor, targets: torch.Tensor) -> ArrayData:
    data = as_data(((inputs, targets), (inputs, targets)), "mine")
    assert isinstance(data, ArrayData)
    return data


def test_images_with_labels() -> None:
    data = convert(IMAGES, LABELS)
    facts = (data.name, data.task, data.kind, data.shape, data.outputs)
    assert facts == ("mine", "classification", "image", (1, 4, 4), 3)
    assert torch.equal(data.test_batch(0, 6)[0], IMAGES)


def test_vectors_with_values() -> None:
    data = convert(VECTORS.double(), VALUES)
    assert (data.task, data.kind, data.outputs) == ("regression", "vector", 1)
    assert data.train[0].dtype == torch.float32 and data.train[1].shape == (6, 1)


def test_bytes_are_scaled_to_one() -> None:
    inputs, _ = convert((IMAGES * 255).to(torch.uint8), LABELS).test_batch(0, 6)
    assert inputs.dtype == torch.float32 and inputs.max() <= 1


def test_map_style_datasets() -> None:
    data = as_data((TensorDataset(VECTORS, LABELS), TensorDataset(VECTORS[:2], LABELS[:2])), "mine")
    assert (data.outputs, data.train_samples, data.test_batches(2)) == (3, 6, 1)


def test_data_stays_as_it_is() -> None:
    data = convert(VECTORS, LABELS)
    assert as_data(data, "mine") is data


GOOD = (VECTORS, LABELS)
BAD = {
    "no tuple": ([GOOD, GOOD], "make_data returned list"),
    "no pair": ((GOOD, VECTORS), "test is not a pair of tensors"),
    "too few targets": ((GOOD, (VECTORS, LABELS[:3])), "test has inputs of shape"),
    "empty": (((VECTORS[:0], LABELS[:0]), GOOD), "train has inputs of shape"),
    "no batch of vectors": (((VALUES, LABELS), GOOD), r"\[N, features\]"),
    "negative labels": (((VECTORS, -LABELS), GOOD), "train has unknown targets"),
    "two tasks": ((GOOD, (VECTORS, VALUES)), "train and test differ"),
    "two types of input": ((GOOD, (VECTORS.to(torch.uint8), LABELS)), "train and test differ"),
    "two shapes": ((GOOD, (IMAGES, LABELS)), "train and test differ"),
    "samples without targets": ((TensorDataset(VECTORS), GOOD), "train is a Dataset whose samples"),
}


@each(("made", "message"), BAD.values())
def test_anything_else_is_explained(made: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"dataset=mine.*{message}"):
        as_data(made, "mine")
