"""Plugins of Hydra for gcbench: launchers of submitit, and folders that packages bring.

Hydra 1.3 takes them from a package of this name only; 1.4 takes launchers also from pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin

from gcbench.core.conf import package_folders
from gcbench.runner.config.hydra_versions import store


class PackageFolders(SearchPathPlugin):
    """Lets Hydra find the files that packages bring by the entry point `gcbench.conf`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in package_folders():
            search_path.append("package", str(folder))


if find_spec("hydra_plugins.hydra_submitit_launcher"):
    from gcbench.runner.launch import jobs

    class PackingKeys(jobs.PackingKeys):
        """Lets Hydra 1.3 validate conf/hydra/launcher by schemas that have our packing keys."""

    class SubmititLocal(jobs.LocalJobs):
        """A launcher that runs jobs as processes on this machine."""

    class SubmititSlurm(jobs.SlurmJobs):
        """A launcher that submits jobs to a Slurm cluster."""

else:
    # The schemas that the files of conf/hydra/launcher begin with: there are only the files' keys.
    for _name in ("local", "slurm"):
        store(group="hydra/launcher/keys", name=_name, node={})

    class SubmititLocal(Launcher):  # type: ignore[no-redef]
        """A stand-in that says how to install Hydra's plugin for submitit."""

        def __init__(self, **_: Any) -> None:
            from gcbench.core.errors import ConfigError

            raise ConfigError(
                "hydra/launcher=submitit_slurm and submitit_local need a plugin of Hydra; "
                "type pip install '.[slurm]' in gcbench's checkout"
            )

        def setup(self, **_: Any) -> None:
            pass

        def launch(
            self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
        ) -> Sequence[JobReturn]:
            return []

    class SubmititSlurm(SubmititLocal):  # type: ignore[no-redef]
        """A stand-in like SubmititLocal."""
