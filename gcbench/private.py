"""The compiler's folders: nobody else may write them, and the libraries in them are whole."""

from __future__ import annotations

import os
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path

LINKING_SECONDS = 10.0  # more than a linker takes for a library of codecs
COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def use_own_compiler_cache() -> None:
    """Let torch.compile use a cache in the user's folder, unless the user has named another.

    By default compiled code lies in the temporary folder of all users, under a name that anybody
    can guess, and is loaded from there; some of torch's headers stay in that folder. Raises
    ValueError where others may write either one.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # slow to import

    shared = default_cache_dir()
    # That import, like any of the compiler, names torch's default in the environment.
    if os.environ.get(COMPILER_CACHE, shared) == shared:
        os.environ.pop(COMPILER_CACHE, None)
        os.environ[COMPILER_CACHE] = str(compiler_cache())
    private_folder(compiler_cache(), COMPILER_CACHE)
    _drop_torn_libraries(compiler_cache())
    private_folder(Path(shared), "TMPDIR")


def _drop_torn_libraries(cache: Path) -> None:
    """Remove libraries whose linker was killed, which torch would load, and not compile again.

    What changed a moment ago may still be written.
    """
    for library in cache.rglob("*.so"):
        with suppress(OSError):  # somebody else removes it
            age = time.time() - library.stat().st_mtime
            if age > LINKING_SECONDS and not _is_whole(library):
                library.unlink()


def _is_whole(library: Path) -> bool:
    """Return whether a library of ELF, with 64 bits, is as long as its header says.

    Its end is the table of sections, whose place, entry size and length stand in the header.
    """
    with library.open("rb") as file:
        header = file.read(64)
    if header[:5] != b"\x7fELF\x02":
        return len(header) == 64 and any(header)  # of another kind, which this cannot judge
    (place,) = struct.unpack_from("<Q", header, 0x28)
    size, count = struct.unpack_from("<HH", header, 0x3A)
    return bool(place) and library.stat().st_size >= place + size * count


def compiler_cache() -> Path:
    """Return the folder that the user has named for torch.compile, or the one in their own."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(COMPILER_CACHE) or Path(caches) / "gcbench" / "inductor")


def private_folder(path: Path, key: str) -> None:
    """Make `path` where it is missing, and refuse it where others may write it.

    ValueError says what to do about `key`.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        link, folder = path.lstat(), path.stat()
    except OSError as error:
        raise ValueError(
            f"{key}: {path}: {error.strerror}; set {key} to a folder of your own"
        ) from error
    if {link.st_uid, folder.st_uid} != {os.getuid()}:
        raise ValueError(
            f"{key}: {path} belongs to another user, whose code would run; set {key} to a folder "
            "of your own"
        )
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{key}: {path} can be written by others, whose code would run; type chmod go-w {path}"
        )
