"""Texts as bytes: which files are read, in which order, and what is held out."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from needed import skip

from gcbench.runner.data import bytes as texts

WIKITEXT = {"train": b"caf\xc3\xa9 1\n", "valid": b"two\n", "test": b"three\n"}


def decode(part: torch.Tensor) -> bytes:
    assert part.dtype == torch.uint8
    return bytes(part.tolist())


def test_wikitext2_has_the_bytes_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for part, content in WIKITEXT.items():
        (folder / f"{part}.txt").write_bytes(content)
    data = texts.wikitext2_bytes(str(tmp_path), bptt=2, split="test")
    assert (decode(data.train), decode(data.test)) == (WIKITEXT["train"], WIKITEXT["test"])
    assert decode(texts.wikitext2_bytes(str(tmp_path)).test) == WIKITEXT["valid"]
    inputs, targets = data.batch(epoch=0, step=0, worker=0, workers=1, batch_size=1, seed=0)
    assert inputs.tolist() == [[99, 97]] and targets.tolist() == [[97, 102]]
    assert inputs.dtype == targets.dtype == torch.int64 and data.outputs == 256
    (folder / "train.txt").unlink()
    with pytest.raises(ValueError, match="dataset=wikitext2_bytes: neither train.txt nor"):
        texts.wikitext2_bytes(str(tmp_path))


def write_documents(folder: Path, count: int = 100) -> dict[str, bytes]:
    """Write numbered documents of 100 bytes, every other one as .gz, and return them by name."""
    documents = {}
    for number in range(count):
        content = f"{number:03}".encode() + b"." * 96 + b"\n"
        file = folder / f"part{number % 3}" / f"{number}.txt{'.gz' * (number % 2)}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(content) if number % 2 else content)
        documents[file.relative_to(folder).as_posix()] = content
    return documents


def test_documents_are_held_out_whole_in_an_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "usr/share/doc/linux-doc-6.1/Documentation"
    documents = write_documents(folder)
    (folder / "picture.svg.gz").write_bytes(gzip.compress(b"<svg>"))
    valid, test = (texts.linux_doc(str(tmp_path), split=part) for part in ("valid", "test"))
    parts = [decode(valid.train), decode(valid.test), decode(test.test)]
    assert [len(part) // 100 for part in parts] == [96, 2, 2]
    lines = b"".join(parts).splitlines()
    assert sorted(lines) == sorted(one[:-1] for one in documents.values())
    held_out = [int(line[:3]) % 3 for line in lines[96:]]
    assert len({*held_out}) > 1, "neighbors in a folder are not held out together"
    again = tmp_path / "other/linux-doc-6.1/Documentation"  # elsewhere, written backwards
    for name in reversed(documents):
        (again / name).parent.mkdir(parents=True, exist_ok=True)
        (again / name).write_bytes((folder / name).read_bytes())
    assert decode(texts.linux_doc(str(tmp_path / "other")).train) == parts[0]
    with pytest.raises(ValueError, match=r"apt-get download linux-doc-5.0 && dpkg -x"):
        texts.linux_doc(str(tmp_path), version="5.0")


def test_own_files_may_be_one_or_match_a_pattern(tmp_path: Path) -> None:
    write_documents(tmp_path)
    whole = texts.text([f"{tmp_path}/**/*.txt*"])
    assert len(whole.train) == 9600
    (tmp_path / "single").write_bytes(bytes(range(100)))
    single = texts.text([str(tmp_path / "single")], split="test")
    assert (decode(single.train), decode(single.test)) == (bytes(range(96)), bytes([98, 99]))
    for size, expected in ((3, bytes(range(3))), (200, bytes(range(96)) * 2 + bytes(range(8)))):
        assert decode(texts.text([str(tmp_path / "single")], size=size).train) == expected
    with pytest.raises(ValueError, match=r"dataset.files=\['none/\*'\]: there are no such files"):
        texts.text(["none/*"])


def test_a_local_data_set_is_read_through_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "datasets", None)
        with pytest.raises(ValueError, match="pip install datasets"):
            texts.hf(str(tmp_path))
    if find_spec("datasets") is None:
        skip("datasets", "there is no such package")
    lines = [json.dumps({"text": f"{number:03}" + "." * 96, "n": number}) for number in range(200)]
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "data.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    data = texts.hf(str(folder), size=9600)
    assert (len(data.train), len(data.test)) == (9600, 200)
    assert max(decode(data.train).splitlines()) < b"100", "no more is read than was asked for"
    with pytest.raises(ValueError, match="dataset.column=words: .* type text"):
        texts.hf(str(folder), column="words")


def test_wikitext2_has_the_bytes_that_conf_names(real_root: Callable[..., str]) -> None:
    assert texts.wikitext2_bytes(real_root("wikitext-2")).train_samples == 10_797_148


def test_linux_doc_has_the_bytes_that_conf_names(real_root: Callable[..., str]) -> None:
    data = texts.linux_doc(real_root("usr/share/doc/linux-doc-6.1", "linux_doc"))
    assert 37e6 < data.train_samples < 38e6 and 0.7e6 < len(data.test) < 0.8e6
