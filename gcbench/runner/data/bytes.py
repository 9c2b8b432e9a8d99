"""Text as bytes: a vocabulary of 256, whatever the language, so that no tokens have to be made.

A text of many documents is laid out in an order that depends on their names alone, and its last
documents are held out: 2 % of the bytes for validation, and 2 % for the test.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from glob import glob
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from gcbench.core.fields import Count, example
from gcbench.runner.data.wikitext2 import TokenData, find_text
from gcbench.runner.settings.groups import Split

Size = Annotated[Count, example(1_000_000)] | None
HELD_OUT = 0.02  # of the bytes, for each of validation and test
NO_PROSE = {".svg", ".dot"}  # pictures


def wikitext2_bytes(
    root: str, bptt: Count = 64, size: Size = None, split: Split = "valid"
) -> TokenData:
    """Return the bytes of WikiText-2's files."""
    folder = Path(root).expanduser() / "wikitext-2"
    train, held = (
        find_text("wikitext2_bytes", folder, part).read_bytes() for part in ("train", split)
    )
    return _data("wikitext2_bytes", train, held, bptt, size)


def linux_doc(
    root: str,
    version: str = "6.1",
    bptt: Count = 64,
    size: Size = None,
    split: Split = "valid",
) -> TokenData:
    """Return the texts in Debian's package linux-doc-<version>, without its HTML and pictures."""
    package = f"linux-doc-{version}"
    top = Path(root).expanduser()
    places = [top / "usr/share/doc", top, Path("/usr/share/doc")]
    found = [place / package / "Documentation" for place in places]
    folder = next((place for place in found if place.is_dir()), None)
    if folder is None:
        raise ValueError(
            f"dataset=linux_doc: there is no {package}/Documentation in {top} or /usr/share/doc; "
            f"type apt-get download {package} && dpkg -x {package}_*.deb {top}, on Debian, or "
            "dataset=wikitext2_bytes for a smaller text"
        )
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    texts = (
        (file.relative_to(folder).as_posix(), _read(file))
        for file in files
        if file.with_name(file.name.removesuffix(".gz")).suffix not in NO_PROSE
    )
    return _split("linux_doc", texts, bptt, size, split)


def text(
    files: list[str], bptt: Count = 64, size: Size = None, split: Split = "valid"
) -> TokenData:
    """Return the bytes of files, or of those that match patterns such as books/**/*.txt."""
    names = sorted(
        {name for one in files for name in glob(str(Path(one).expanduser()), recursive=True)}
    )
    texts = [(name, _read(Path(name))) for name in names if Path(name).is_file()]
    if not texts:
        raise ValueError(
            f"dataset.files={files}: there are no such files; type paths, or patterns such as "
            "dataset.files=['books/**/*.txt']"
        )
    return _split("text", texts, bptt, size, split)


def hf(
    name: str,
    subset: str | None = None,
    column: str = "text",
    bptt: Count = 64,
    size: Count = 50_000_000,
    split: Split = "valid",
) -> TokenData:
    """Return the first documents in the training part of a data set that `datasets` can load.

    `name` is one of the hub's or a local folder; with what is held out they have `size` bytes.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            "dataset=hf reads through the package datasets, which is not installed; type "
            "pip install datasets"
        ) from error
    rows = load_dataset(name, subset, split="train", streaming=True)
    return _split("hf", _first(rows, name, column, size / (1 - 2 * HELD_OUT)), bptt, size, split)


def _first(
    rows: Iterable[dict[str, Any]], name: str, column: str, size: float
) -> Iterator[tuple[str, bytes]]:
    """Yield numbered documents until they have `size` bytes."""
    read = 0
    for number, row in enumerate(rows):
        if not isinstance(row.get(column), str):
            texts = [key for key, value in row.items() if isinstance(value, str)]
            raise ValueError(
                f"dataset.column={column}: {name} has no such column of texts; type "
                f"{' or '.join(texts) or 'a data set that has one'}"
            )
        document = f"{row[column]}\n".encode()
        yield str(number), document
        read += len(document)
        if read >= size:
            return


def _read(file: Path) -> bytes:
    content = file.read_bytes()
    return gzip.decompress(content) if file.suffix == ".gz" else content


def _split(
    name: str, documents: Iterable[tuple[str, bytes]], bptt: int, size: int | None, split: Split
) -> TokenData:
    """Return documents in the order of their names' hashes, the last of them held out.

    Parts end where a document does, unless one of them would be empty: a single file is cut.
    """
    ordered = [text for _, text in sorted(documents, key=lambda one: (crc32(one[0].encode()), one))]
    ends = [*accumulate(map(len, ordered))]
    cuts = [ends[-1] * (1 - 2 * HELD_OUT), ends[-1] * (1 - HELD_OUT)]
    at = [next(end for end in ends if end >= cut) for cut in cuts]
    first, second = at if at[0] < at[1] < ends[-1] else map(int, cuts)
    whole = b"".join(ordered)
    held = {"valid": whole[first:second], "test": whole[second:]}
    return _data(name, whole[:first], held[split], bptt, size)


def _data(name: str, train: bytes, held: bytes, bptt: int, size: int | None) -> TokenData:
    """Return data of `size` bytes to an epoch; a shorter text begins again."""
    if size is not None:
        train = (train * -(-size // max(1, len(train))))[:size]
    return TokenData(name, 256, _as_tensor(train), _as_tensor(held), bptt)


def _as_tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
