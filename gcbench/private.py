"""Checks of the compiler's folders: no other user can write to them, no library is truncated."""

from __future__ import annotations

import os
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path

LINKING_SECONDS = 10.0  # longer than linking a library of codecs takes
COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def use_own_compiler_cache() -> None:
    """Make torch.compile use a cache in the user's own folder, unless the user has named another.

    By default compiled code is stored in, and loaded from, the temporary folder that all users
    share, under a name that anybody can guess; some of torch's headers stay there in any case.
    Raises ValueError if others can write to either folder.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # slow to import

    shared = default_cache_dir()
    # That import, like any of the compiler, sets the variable to torch's default.
    if os.environ.get(COMPILER_CACHE, shared) == shared:
        os.environ.pop(COMPILER_CACHE, None)
        os.environ[COMPILER_CACHE] = str(compiler_cache())
    private_folder(compiler_cache(), COMPILER_CACHE)
    _drop_torn_libraries(compiler_cache())
    private_folder(Path(shared), "TMPDIR")


def _drop_torn_libraries(cache: Path) -> None:
    """Remove libraries whose linker was killed: torch would load them and not compile again.

    Recently changed ones are left alone, as a linker may still be writing them.
    """
    for library in cache.rglob("*.so"):
        with suppress(OSError):  # another process has removed it
            age = time.time() - library.stat().st_mtime
            if age > LINKING_SECONDS and not _is_whole(library):
                library.unlink()


def _is_whole(library: Path) -> bool:
    """Return whether a 64-bit ELF library is as long as its header says.

    It ends with the table of sections, whose offset, entry size and length are in the header.
    """
    with library.open("rb") as file:
        header = file.read(64)
    if header[:5] != b"\x7fELF\x02":
        return len(header) == 64 and any(header)  # another format, which this cannot check
    (place,) = struct.unpack_from("<Q", header, 0x28)
    size, count = struct.unpack_from("<HH", header, 0x3A)
    return bool(place) and library.stat().st_size >= place + size * count


def compiler_cache() -> Path:
    """Return torch.compile's cache folder: the one that the user has named, or gcbench's."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(COMPILER_CACHE) or Path(caches) / "gcbench" / "inductor")


def private_folder(path: Path, key: str) -> None:
    """Make the folder `path` if it is missing; raise ValueError if others can write to it.

    The message says what to do about `key`, the environment variable that names the folder.
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
