"""What the parent refuses before any worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence import run

from gcbench.config import ConfigError
from gcbench.launch import checks


@pytest.mark.parametrize(
    ("sentence", "says"),
    [
        ("trainer.gpus=2000", "trainer.gpus=2000: the data has 1437 training samples, fewer than workers"),
        ("trainer.batch_size=1000", "a worker's shard has 718 samples, too few for one batch; type trainer.batch_size=718"),
        ("model._target_=my.missing.Net", "model._target_=my.missing.Net cannot be imported"),
        ("+model.depth=3", "model.depth: gcbench.models.mlp.MLP has no such argument; it has shape, outputs, widths"),
        ("dataset.test_fraction=abc", "dataset.test_fraction=abc: type float"),
        ("compressor.method.dtype=int4 compressor=none", "compressor.method.dtype=int4: type float32 or float16 or bfloat16"),
        ("dataset=cifar10 dataset.download=false data.root=nowhere", "cifar10"),
        ("model=vgg16", "32"),
        (
            "model=gpt_small dataset._target_=own_data.text trainer.eval_batch_size=300",
            "trainer.eval_batch_size=300: the test part is too short for one batch",
        ),
    ],
)
def test_refusals(tmp_path: Path, sentence: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        run(tmp_path, "trainer.launcher=virtual", *sentence.split())
    assert says in str(error.value)
    assert not (tmp_path / "result.json").exists()


def test_virtual_copies_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_free_bytes", lambda: 1 << 20)
    with pytest.raises(
        ConfigError, match=r"trainer.gpus=64: gradients of .* need about .* GiB are free; type trainer.gpus=\d+"
    ):
        run(tmp_path, "trainer.launcher=virtual", "trainer.gpus=64")


def test_text_cannot_be_cut_into_micro_batches(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text(" ".join(["a", "b", "c"] * 400) + "\n")
    with pytest.raises(ConfigError, match="trainer.accumulate=2: model=lstm carries hidden state"):
        run(
            tmp_path / "out",
            "model=lstm",
            "model.width=8",
            "dataset=wikitext2",
            f"data.root={tmp_path}",
            "trainer.batch_size=2",
            "trainer.accumulate=2",
        )
