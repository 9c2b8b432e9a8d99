"""Folders that nobody else may write, so that what is loaded from them is the user's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def use_own_compiler_cache() -> None:
    """Let torch.compile use a cache in the user's folder, unless the user has named another.

    By default they lie in the temporary folder of all users, under a name that anybody can guess,
    and are loaded from there. Some headers stay there. ValueError where others may write either
    folder.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # slow to import

    shared = default_cache_dir()
    # That import, like any of the compiler, names torch's default in the environment.
    if os.environ.get(COMPILER_CACHE, shared) == shared:
        os.environ.pop(COMPILER_CACHE, None)
        os.environ[COMPILER_CACHE] = str(compiler_cache())
    private_folder(compiler_cache(), COMPILER_CACHE)
    private_folder(Path(shared), "TMPDIR")


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
