"""The compiler's folders: no code of others is loaded from them, and no file of the user lost."""

from __future__ import annotations

import grp
import os
import pwd
import tempfile
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from gcbench.core.codecs.kernels import backend_in_use, use_backend
from gcbench.core.private import COMPILER_CACHE, private_folder, use_own_compiler_cache
from gcbench.runner.launch.lock import temporary_folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_libraries_lie_in_a_folder_of_the_users_own(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COMPILER_CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    for _ in range(2):
        use_own_compiler_cache()
        cache = Path(os.environ[COMPILER_CACHE])
        assert cache == here / "cache" / "gcbench" / "inductor"
        assert cache.stat().st_mode & 0o777 == 0o700
        monkeypatch.setenv(COMPILER_CACHE, default_cache_dir())  # as the compiler's import does


def test_libraries_of_another_user_are_not_loaded(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = here / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv(COMPILER_CACHE, str(cache))
    use_own_compiler_cache()
    cache.chmod(0o777)
    before = backend_in_use()
    for use in (use_own_compiler_cache, lambda: use_backend("compiled")):
        says = "TORCHINDUCTOR_CACHE_DIR: .*cache can be written by others.*chmod go-w"
        with pytest.raises(ValueError, match=says):
            use()
    assert backend_in_use() == before  # for a caller that goes on after the error
    cache.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    with pytest.raises(ValueError, match="belongs to another user, whose code would run"):
        private_folder(cache, COMPILER_CACHE)


def test_a_folder_below_one_that_others_may_write_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could put another folder in its place, after it has been checked."""
    open_folder, elsewhere = here / "open", here / "elsewhere"
    for folder in (open_folder, elsewhere):
        (folder / "mine").mkdir(parents=True, mode=0o700)
    cache = open_folder / "mine" / "cache"
    link = here / "link"
    link.symlink_to(open_folder / "mine")
    (open_folder / "link").symlink_to(elsewhere / "mine")
    private_folder(cache, COMPILER_CACHE)
    open_folder.chmod(0o777)
    places = (cache, link / "cache", link, open_folder / "link" / "cache", cache / "more" / "below")
    for place in places:
        with pytest.raises(ValueError, match="below .*/open, which others can write.*set TORCHIND"):
            private_folder(place, COMPILER_CACHE)
    monkeypatch.setenv("TMPDIR", str(open_folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ValueError, match="TMPDIR: .*which others can write"), temporary_folder():
        pass
    assert not list(open_folder.glob("gcbench-*"))
    open_folder.chmod(0o1777)  # as /tmp: nobody can move what belongs to another
    private_folder(cache, COMPILER_CACHE)
    with temporary_folder():
        pass
    open_folder.chmod(0o775)
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group(("all", "x", number, [])))
    with pytest.raises(ValueError, match="which others can write"):
        private_folder(cache, COMPILER_CACHE)
    own = pwd.getpwuid(os.getuid()).pw_name  # many systems give each user a group of their own
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((own, "x", number, [])))
    private_folder(cache, COMPILER_CACHE)
