"""A build hook that records the commit in wheels and source archives, for results of both."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "gcbench/built_from.json"  # read by gcbench.runner.records.environment


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or not (root / ".git").exists():
            return  # a checkout that is used as it is asks git; an archive has the file

        def git(*arguments: str) -> str:
            return subprocess.check_output(["git", "-C", str(root), *arguments], text=True).strip()

        try:
            commit, date = git("log", "-1", "--format=%H %cI").split()
            dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
        except (OSError, subprocess.CalledProcessError):  # no git, or no commit yet
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "built_from.json"
        file.write_text(json.dumps({"commit": commit, "dirty": dirty, "date": date}))
        build_data["force_include"][str(file)] = NAME
