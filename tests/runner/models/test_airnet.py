"""AirNet: the stem whitens and is frozen, and the stages begin as the identity."""

from __future__ import annotations

import pytest
import torch

from gcbench.runner.models import InitializedFromData
from gcbench.runner.models.airnet import AirNet, Stage


def images(count: int = 200) -> torch.Tensor:
    """Return images whose neighboring pixels and channels resemble each other."""
    noise = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return noise.cumsum(3) + noise[:, :1]


def second_moments(answers: torch.Tensor) -> torch.Tensor:
    """Return the mean products of pairs of channels, `[channels, channels]`."""
    by_channel = answers.transpose(0, 1).flatten(1).double()
    return by_channel @ by_channel.T / by_channel.shape[1]


def test_the_stem_whitens_and_holds_each_filter_with_its_negative() -> None:
    model, seen = AirNet((3, 16, 16), 4, widths=(8, 8, 8)), images()
    assert isinstance(model, InitializedFromData)
    identity = torch.eye(12, dtype=torch.float64)
    with torch.no_grad():
        before = second_moments(model.stem(seen)[:, :12])
        model.initialize_from(seen)
        answers = model.stem(seen)
    assert (before - identity).abs().max() > 0.5
    torch.testing.assert_close(second_moments(answers[:, :12]), identity, rtol=0, atol=0.05)
    torch.testing.assert_close(answers[:, :12], -answers[:, 12:])


def test_convolutions_start_as_the_identity_on_the_channels_that_come_in() -> None:
    stage, hidden = Stage(4, 6), torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(stage.conv1(hidden)[:, :4], hidden)
        wide = torch.randn(2, 6, 8, 8)
        torch.testing.assert_close(stage.conv2(wide), wide)


def test_only_weights_of_convolutions_biases_of_norms_and_the_head_are_trained() -> None:
    model = AirNet((3, 16, 16), 4, widths=(8, 8, 8))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    norms = {f"stages.{i}.norm{k}.weight" for i in range(3) for k in (1, 2)}
    assert frozen == {"stem.weight", *norms}


def test_images_that_are_too_small_are_refused() -> None:
    assert AirNet((1, 9, 9), 4, widths=(4, 4, 4))(torch.randn(2, 1, 9, 9)).shape == (2, 4)
    with pytest.raises(ValueError, match="cannot read images of 8 x 9; type a data set of 9 x 9"):
        AirNet((1, 8, 9), 4)
