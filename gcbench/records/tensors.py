"""Tensors in files, as `torch.save` writes them."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

import torch


class _Watched:
    """A file that keeps the error of a write that failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def write_tensors(content: dict[str, Any], file: BinaryIO) -> None:
    """Write a dictionary of tensors and plain values; raise the OSError of a write that failed.

    In its place `torch.save` raises an error about positions in its own format.
    """
    watched = _Watched(file)
    try:
        torch.save(content, cast(BinaryIO, watched))  # it needs no more of a file
    except (OSError, RuntimeError):
        if watched.error is None:
            raise
        raise watched.error from None
