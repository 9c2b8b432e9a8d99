"""A small GPT: it sees no later word, learns, and can have its parameters in bf16."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from gcbench.runner.models.gpt import GPT


def small(**settings: object) -> GPT:
    torch.manual_seed(0)
    return GPT(
        50, **{"width": 16, "layers": 2, "heads": 2, "context": 8, "dropout": 0.0, **settings}
    )  # type: ignore[arg-type]


def test_size() -> None:
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in GPT(10_000, layers=layers).parameters()) for layers in (4, 5)
        ]
    assert sizes == [5_752_320, 5_752_320 + 12 * 256**2 + 13 * 256]


def test_initial_weights_of_every_width_make_outputs_of_one_size() -> None:
    """Without a given deviation, models of all widths begin alike; GPT-2's fits its own width."""
    for width in (16, 64, 256):
        spread = {
            std: small(width=width, std=std).blocks[0].qkv.weight.std() for std in (None, 0.02)
        }
        assert spread[None].item() == pytest.approx(0.5 / width**0.5, rel=0.05)
        assert spread[0.02].item() == pytest.approx(0.02, rel=0.05)


def test_later_words_change_nothing_before_them() -> None:
    model, tokens = small().eval(), torch.randint(50, (3, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 50
    before, after = model(tokens), model(changed)
    assert before.shape == (3, 8, 50)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amax((0, 2)).min() > 1e-4


def test_words_know_their_positions() -> None:
    scores = small()(torch.zeros(1, 8, dtype=torch.long))
    assert not torch.allclose(scores[0, 0], scores[0, 7])


def test_learns_with_tied_weights() -> None:
    model, tokens = small(), torch.randint(50, (3, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[4] < losses[0] - 0.1
    assert model.decoder.weight is model.embedding.weight
    assert all(p.grad is not None for p in model.parameters())


def test_dropout_only_in_training() -> None:
    model, tokens = small(dropout=0.5), torch.randint(50, (3, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_parameters_and_gradients_in_bf16() -> None:
    model = small(parameters="bf16")
    cross_entropy(
        model(torch.randint(50, (3, 8))).flatten(0, 1).float(), torch.zeros(24, dtype=torch.long)
    ).backward()
    assert (
        {p.dtype for p in model.parameters()}
        == {p.grad.dtype for p in model.parameters()}
        == {torch.bfloat16}
    )


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"model\.heads=3 does not divide model\.width=16"):
        small(heads=3)
    says = r"model\.context=8 is less than a window of 9.*dataset\.bptt=8"
    with pytest.raises(ValueError, match=says):
        small()(torch.zeros(1, 9, dtype=torch.long))
