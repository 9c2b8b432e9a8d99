"""The word-level vocabulary, on a toy text and on the real one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gcbench.papers.tables.tables import read_table
from gcbench.runner.data.wikitext2 import wikitext2


@pytest.fixture
def toy(tmp_path: Path) -> str:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    (folder / "train.txt").write_text(" a b b c\n \n c c d\n")
    (folder / "wiki.valid.tokens").write_text("a c new\n")
    (folder / "test.txt").write_text("b newer\n")
    return str(tmp_path)


def test_all_words_count_with_eos_at_each_line(toy: str) -> None:
    data = wikitext2(toy)
    assert data.outputs == len(["<unk>", "<eos>", "a", "b", "c", "d", "new", "newer"])
    assert data.train.tolist() == [2, 3, 3, 4, 1, 1, 4, 4, 5, 1]
    assert data.test.tolist() == [2, 4, 6, 1]


def test_rare_words_become_unknown(toy: str) -> None:
    data = wikitext2(toy, vocabulary=4)
    assert data.train.tolist() == [0, 3, 3, 2, 1, 1, 2, 2, 0, 1]
    assert data.test.tolist() == [0, 2, 0, 1]


def test_a_vocabulary_larger_than_the_text_keeps_its_size(toy: str) -> None:
    data = wikitext2(toy, vocabulary=28869)
    assert data.outputs == 28869 and int(data.train.max()) == 5


def test_the_split_is_chosen(toy: str) -> None:
    assert wikitext2(toy, split="test").test.tolist() == [3, 7, 1]


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.txt nor wiki\.train\.tokens.*data\.root"):
        wikitext2(str(tmp_path))


def test_real_text_has_the_published_size(real_root: Callable[[str], str]) -> None:
    data = wikitext2(real_root("wikitext-2"))
    assert (data.outputs, data.train_samples) == (33_278, 2_088_628)
    assert int(data.train.max()) == 33_277


@pytest.mark.parametrize(("vocabulary", "perplexity"), [(2000, 111), (28869, 910)])
def test_word_frequencies_have_the_perplexity_that_tables_name(
    real_root: Callable[[str], str], vocabulary: int, perplexity: int
) -> None:
    """The notes on PowerSGD's tables 3 and 7 name these; every word's count is raised by one."""
    data = wikitext2(real_root("wikitext-2"), vocabulary=vocabulary)
    counts = torch.bincount(data.train, minlength=vocabulary) + 1
    surprise = -(counts / counts.sum()).log()[data.test]
    assert surprise.mean().exp().item() == pytest.approx(perplexity, abs=0.5)
    notes = " ".join(read_table("powersgd/table7").notes)
    assert re.search(rf"\b{perplexity} with {vocabulary:,}\b", notes)
