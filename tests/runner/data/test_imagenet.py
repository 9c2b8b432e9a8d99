"""Folders of images: files are found, dealt out and cropped; and a small real data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from PIL import Image

from gcbench.runner.data import Data
from gcbench.runner.data.augment import crop_box
from gcbench.runner.data.imagenet import imagenet

WHERE = {"epoch": 0, "step": 1, "workers": 2, "batch_size": 3, "seed": 0}


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Make two classes of 10 + 2 images each: red rises by row, green encodes the number."""
    for part, count in {"train": 10, "val": 2}.items():
        for wnid in ("n01", "n02"):
            folder = tmp_path / "imagenet" / part / wnid
            folder.mkdir(parents=True)
            for number in range(count):
                picture = Image.linear_gradient("L").resize((40, 30))
                flat = Image.new("L", (40, 30), 12 * number)
                Image.merge("RGB", (picture, flat, flat)).save(
                    folder / f"{number}.JPEG", quality=95
                )
    return str(tmp_path)


def test_batches_follow_from_their_place_alone(small: str) -> None:
    one, other = imagenet(small, size=16), imagenet(small, size=16)
    images, labels = one.batch(worker=1, **WHERE)
    assert isinstance(one, Data)
    assert (one.kind, one.shape, one.outputs, one.train_samples) == ("image", (3, 16, 16), 2, 20)
    assert images.shape == (3, 3, 16, 16) and images.dtype == torch.float32
    assert labels.dtype == torch.int64
    other.batch(worker=0, **WHERE)
    again = other.batch(worker=1, **WHERE)
    assert torch.equal(images, again[0]) and torch.equal(labels, again[1])


def test_an_epoch_deals_every_file_once(small: str) -> None:
    data = imagenet(small, size=16, augment=False)
    assert data.steps_per_epoch(2, 3) == 3
    labels, greens = [], []
    for step in range(5):
        for worker in range(2):
            images, batch = data.batch(
                epoch=0, step=step, worker=worker, workers=2, batch_size=2, seed=0
            )
            labels += batch.tolist()
            greens += (
                (255 * (images[:, 1].mean((1, 2)) * 0.224 + 0.456) / 12).round().int().tolist()
            )
    assert sorted(zip(labels, greens, strict=True)) == [
        (label, number) for label in range(2) for number in range(10)
    ]


def test_crops_are_new_for_each_image_epoch_worker_and_seed(small: str) -> None:
    """All files have the same red channel, apart from what JPEG loses."""
    data = imagenet(small, size=8)
    where = {"epoch": 0, "step": 0, "worker": 0, "workers": 2, "batch_size": 10, "seed": 0}
    reds = [
        data.batch(**{**where, **other})[0][:, 0]
        for other in ({}, {"epoch": 1}, {"worker": 1}, {"seed": 1})
    ]
    assert all((other - reds[0]).abs().max() > 0.5 for other in [*reds[1:], reds[0].roll(1, 0)])


def test_test_images_are_cut_at_the_center(small: str) -> None:
    data = imagenet(small, size=14)  # resized to 16 x 21
    images, labels = data.test_batch(0, 3)
    assert (data.test_batches(3), labels.tolist()) == (2, [0, 0, 1])
    red = images[0, 0] * 0.229 + 0.485
    expected = (torch.arange(1, 15) + 0.5) / 16
    torch.testing.assert_close(red, expected[:, None].expand(14, 14), atol=0.02, rtol=0)


def test_the_validation_part_is_held_out(small: str) -> None:
    data = imagenet(small, size=16, split="valid")
    names = [{path for path, _ in part} for part in (data.train, data.test)]
    assert [len(part) for part in names] == [18, 2] and not names[0] & names[1]
    assert all("/train/" in path for path in names[1])


def test_crops_fit_and_have_the_asked_for_areas() -> None:
    chance = Random(0)
    boxes = [crop_box(300, 400, chance) for _ in range(2000)]
    assert all(t >= 0 and t + h <= 300 and left >= 0 and left + w <= 400 for t, left, h, w in boxes)
    shares = torch.tensor([h * w / (300 * 400) for _, _, h, w in boxes])
    ratios = torch.tensor([w / h for _, _, h, w in boxes])
    assert 0.079 < shares.min() < 0.09 and shares.max() > 0.95
    assert 0.74 < ratios.min() < 0.76 and 1.32 < ratios.max() < 1.35
    assert {t == 0 for t, *_ in boxes} == {True, False}
    # If no random box fits, it is the largest box at the center.
    assert crop_box(10, 1000, chance)[2:] == (10, 13)


def test_missing_folders_are_explained(tmp_path: Path, small: str) -> None:
    says = r"dataset=imagenet: .*/nowhere lacks.*cannot be downloaded.*data\.root"
    with pytest.raises(ValueError, match=says):
        imagenet(str(tmp_path), folder="nowhere")
    (tmp_path / "imagenet" / "val" / "n02").rename(tmp_path / "imagenet" / "val" / "n03")
    with pytest.raises(ValueError, match="different classes"):
        imagenet(small)


def test_real_images(real_root: Callable[[str], str]) -> None:
    data = imagenet(real_root("imagenet-mini"), folder="imagenet-mini", size=64)
    assert (data.outputs, data.train_samples, len(data.test)) == (10, 5000, 500)
    images, labels = data.test_batch(0, 200)
    assert images.shape == (200, 3, 64, 64) and labels.bincount().tolist() == [50] * 4
    assert abs(float(images.mean())) < 0.5 and 0.7 < float(images.std()) < 1.4


def test_half_of_the_training_images_are_mirrored_and_none_is_upside_down(tmp_path: Path) -> None:
    """Red rises from top to bottom, blue from left to right."""
    down = Image.linear_gradient("L").resize((40, 40))
    picture = Image.merge("RGB", (down, Image.new("L", (40, 40)), down.transpose(Image.TRANSPOSE)))
    for part, count in {"train": 20, "val": 1}.items():
        folder = tmp_path / "imagenet" / part / "n01"
        folder.mkdir(parents=True)
        for number in range(count):
            picture.save(folder / f"{number}.JPEG", quality=95)
    where = {"epoch": 0, "worker": 0, "workers": 1, "batch_size": 10, "seed": 0}
    first, second = (imagenet(str(tmp_path), size=8).batch(step=s, **where)[0] for s in (0, 1))
    assert (first[:, 0] - second[:, 0]).abs().max() > 0.5, "each step has crops of its own"
    images = torch.cat([first, second])
    assert (images[:, 0, -1].mean(1) > images[:, 0, 0].mean(1)).all()
    assert 4 <= int((images[:, 2, :, -1].mean(1) < images[:, 2, :, 0].mean(1)).sum()) <= 16


def test_each_channel_is_normalized_by_its_own_numbers(tmp_path: Path) -> None:
    for part in ("train", "val"):
        folder = tmp_path / "imagenet" / part / "n01"
        folder.mkdir(parents=True)
        Image.new("RGB", (16, 16), (255, 255, 255)).save(folder / "0.JPEG")
    images, _ = imagenet(str(tmp_path), size=8).test_batch(0, 1)
    whites = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    torch.testing.assert_close(images[0, :, 0, 0], torch.tensor(whites))
