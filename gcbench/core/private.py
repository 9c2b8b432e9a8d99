"""Checks of private folders: no other user can write to them or swap them for other ones."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

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
    os.environ.setdefault("TRITON_CACHE_DIR", str(compiler_cache() / "triton"))
    private_folder(compiler_cache(), COMPILER_CACHE)
    private_folder(Path(os.environ["TRITON_CACHE_DIR"]), "TRITON_CACHE_DIR")
    private_folder(Path(shared), "TMPDIR")


def compiler_cache() -> Path:
    """Return torch.compile's cache folder: the one that the user has named, or gcbench's."""
    return Path(os.environ.get(COMPILER_CACHE) or cache_folder("inductor"))


def cache_folder(name: str) -> Path:
    """Return gcbench's folder of this name in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gcbench" / name


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
    refuse_open_parents(path, key)


def refuse_open_parents(path: Path, key: str) -> None:
    """Raise ValueError if others can put another folder in the place of `path`.

    They can where they may write to a folder above it, unless that has the sticky bit, as /tmp.
    """
    for folder in _folders_above(path):
        status = folder.stat()
        if not status.st_mode & stat.S_ISVTX and _others_write(status):
            raise ValueError(
                f"{key}: {path} is below {folder}, which others can write, so they could replace "
                f"it; type chmod go-w {folder}, or set {key} to a folder elsewhere"
            )


def _folders_above(path: Path) -> Iterator[Path]:
    """Yield all folders through which `path` is reached, also those behind symbolic links."""
    above = path.absolute().parents
    yield from above
    for place in (path, *above):
        if place.is_symlink():
            yield from _folders_above(place.parent / place.readlink())


def _others_write(status: os.stat_result) -> bool:
    """Return whether others may write; many systems give each user a group of their own."""
    if not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(os.getuid())
    except KeyError:  # unknown on this machine
        return True
    own = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return bool(status.st_mode & stat.S_IWOTH) or not own
