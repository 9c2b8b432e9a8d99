"""Sharding, shuffling and augmentation of images and vectors."""

from __future__ import annotations

import numpy as np
import torch

from gcbench.core.codecs.noise import mix
from gcbench.runner.data import ArrayData, Data
from gcbench.runner.data.augment import Augmentation, _reflect


def number_samples(samples: int) -> ArrayData:
    rows = torch.arange(samples)
    half = (rows.float()[:, None], rows)
    return ArrayData("numbered", "classification", samples, half, half)


def chosen(
    data: Data, *, epoch: int = 0, step: int = 0, worker: int = 0, seed: int = 0
) -> list[int]:
    _, targets = data.batch(
        epoch=epoch, step=step, worker=worker, workers=4, batch_size=5, seed=seed
    )
    return targets.tolist()


def test_an_epoch_deals_every_sample_once() -> None:
    data = number_samples(60)
    assert data.steps_per_epoch(4, 5) == 3
    dealt = [
        row
        for step in range(3)
        for worker in range(4)
        for row in chosen(data, step=step, worker=worker)
    ]
    assert sorted(dealt) == list(range(60))


def test_the_last_small_step_is_dropped() -> None:
    assert number_samples(79).steps_per_epoch(4, 5) == 3
    assert number_samples(19).steps_per_epoch(4, 5) == 0


def test_workers_share_one_global_batch() -> None:
    data = number_samples(60)
    one, _ = data.batch(epoch=2, step=1, worker=0, workers=1, batch_size=20, seed=3)
    four = [
        data.batch(epoch=2, step=1, worker=k, workers=4, batch_size=5, seed=3)[0] for k in range(4)
    ]
    assert torch.equal(torch.cat(four), one)


def test_order_depends_on_seed_and_epoch_alone() -> None:
    data = number_samples(60)
    first = chosen(data)
    assert chosen(data, epoch=1) != first and chosen(data, seed=1) != first
    assert chosen(data) == first and chosen(number_samples(60)) == first


def test_test_split_in_order_with_a_short_last_batch() -> None:
    data = number_samples(25)
    batches = [data.test_batch(index, 10)[1] for index in range(data.test_batches(10))]
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert torch.equal(torch.cat(batches), torch.arange(25))


USUAL = Augmentation()


def photos(augment: bool, augmentation: Augmentation = USUAL) -> ArrayData:
    images = torch.randint(1, 256, (40, 3, 12, 12), generator=torch.Generator().manual_seed(0))
    half = (images.to(torch.uint8), torch.arange(40))
    pixels = (torch.full((3, 1, 1), 100.0), torch.full((3, 1, 1), 50.0))
    return ArrayData(
        "photos", "classification", 40, half, half, pixels, augmentation if augment else None
    )


def test_a_worker_augments_alike_wherever_it_lives() -> None:
    together, alone = photos(augment=True), photos(augment=True)
    where = {"epoch": 1, "step": 2, "workers": 4, "batch_size": 3, "seed": 0}
    all_workers = [together.batch(worker=worker, **where)[0] for worker in range(4)]
    assert torch.equal(all_workers[2], alone.batch(worker=2, **where)[0])


def test_each_worker_augments_by_chances_of_its_own() -> None:
    """All images are the same picture, so that batches differ only by augmentation."""
    data = photos(augment=True)
    data.train[0][:] = data.train[0][0].clone()
    where = {"epoch": 0, "step": 0, "worker": 0, "workers": 2, "batch_size": 10, "seed": 0}
    others = ({}, {"worker": 1}, {"step": 1}, {"epoch": 1}, {"seed": 1})
    first, *rest = (data.batch(**{**where, **other})[0] for other in others)
    assert not any(torch.equal(first, batch) for batch in rest)


def test_augmentation_differs_by_step_and_leaves_the_test_split_alone() -> None:
    data = photos(augment=True)
    plain = photos(augment=False)
    where = {"epoch": 0, "worker": 0, "workers": 1, "batch_size": 40, "seed": 0}
    assert data.batch(step=0, **where)[0].shape == (40, 3, 12, 12)
    assert not torch.equal(data.batch(step=0, **where)[0], plain.batch(step=0, **where)[0])
    assert torch.equal(data.test_batch(0, 40)[0], plain.test_batch(0, 40)[0])


def test_images_are_standardized() -> None:
    data = photos(augment=False)
    assert data.shape == (3, 12, 12) and data.kind == "image"
    torch.testing.assert_close(data.test_batch(0, 40)[0], (data.test[0].float() - 100) / 50)


def test_what_lies_outside_may_be_the_reflection() -> None:
    images = photos(augment=False).train[0]
    augmentation = Augmentation(crop_padding=2, crop_fill="reflect")
    results = augmentation.apply(images, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images.float(), (2,) * 4, mode="reflect").to(torch.uint8)
    seen = set()
    for image, result in zip(padded, results, strict=True):
        (place,) = _places(image, result)
        seen.add(place)
    assert len({flip for _, _, flip in seen}) == 2 and len(seen) > 15


def test_what_lies_farther_outside_is_reflected_at_both_borders() -> None:
    """A crop may lie off center by a side and more."""
    expected = np.pad(np.arange(5), 9, mode="reflect")
    assert _reflect(torch.arange(-9, 14), 5).tolist() == expected.tolist()


def test_alternating_flips_mirror_each_image_in_every_other_epoch() -> None:
    """About half of the images begin mirrored; four workers get the same images as one."""
    data = photos(augment=True, augmentation=Augmentation(crop_padding=0, flip="alternating"))
    plain = photos(augment=False)
    where = {"step": 0, "worker": 0, "workers": 1, "batch_size": 40}
    mirrored = []
    for epoch in range(3):
        (inputs, names), (same, _) = (
            each.batch(epoch=epoch, seed=1, **where) for each in (data, plain)
        )
        flipped = (inputs != same).flatten(1).any(1)
        torch.testing.assert_close(inputs, torch.where(_on_images(flipped), same.flip(3), same))
        mirrored.append(flipped[names.argsort()])
    assert torch.equal(mirrored[0], ~mirrored[1]) and torch.equal(mirrored[0], mirrored[2])
    assert 10 < int(mirrored[0].sum()) < 30
    shares = [
        data.batch(epoch=1, step=0, worker=k, workers=4, batch_size=10, seed=1)[0] for k in range(4)
    ]
    assert torch.equal(torch.cat(shares), data.batch(epoch=1, seed=1, **where)[0])


def _on_images(flags: torch.Tensor) -> torch.Tensor:
    return flags[:, None, None, None]


def test_crop_and_flip_matches_one_image_at_a_time() -> None:
    images = photos(augment=False).train[0]
    results = Augmentation().apply(images, torch.Generator().manual_seed(0))
    assert results.dtype == torch.uint8 and results.is_contiguous()
    seen = set()
    for image, result in zip(images, results, strict=True):
        padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
        (place,) = _places(padded, result)
        seen.add(place)
    assert len({flip for _, _, flip in seen}) == 2 and len(seen) > 20


def _places(padded: torch.Tensor, result: torch.Tensor) -> list[tuple[int, int, bool]]:
    """Return all (top, left, mirrored) with which `result` can be cut from a padded image."""
    offsets = range(padded.shape[-1] - result.shape[-1] + 1)
    return [
        (top, left, flip)
        for top in offsets
        for left in offsets
        for flip in (False, True)
        if torch.equal(_cut(padded, top, left, flip), result)
    ]


def _cut(padded: torch.Tensor, top: int, left: int, flip: bool) -> torch.Tensor:
    cut = padded[:, top : top + 12, left : left + 12]
    return cut.flip(2) if flip else cut


def test_mixed_seeds_do_not_collide() -> None:
    near = [mix(a, b) for a in range(50) for b in range(50)]
    assert len(set(near)) == 2500 and len({seed % 2**32 for seed in near}) == 2500
    assert mix(1, 2) != mix(2, 1) and mix(0) != mix(0, 0)


def test_array_data_is_data() -> None:
    assert isinstance(number_samples(3), Data)
    assert number_samples(3).to(torch.device("cpu")).train_samples == 3
