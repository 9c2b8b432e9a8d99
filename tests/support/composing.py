"""Hydra that merges the same files of conf/ once a process.

Composing a command line takes it 0.15 s, nearly all of which goes into reading and merging files,
though tests mostly type values of keys. They compose in a seventh of the time, to the same tree:
see test_config.py. Folders besides conf/ are read anew each time.
"""

from __future__ import annotations

from copy import deepcopy
from functools import wraps
from typing import Any

from hydra._internal import config_loader_impl as loader
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from gcbench.config import conf_directory

CONF = str(conf_directory())
_lists: dict[tuple[object, ...], DefaultsList] = {}
_trees: dict[int, DictConfig] = {}  # by the list of files, which `_lists` keeps


def merge_files_once() -> None:
    """Have Hydra keep what it merges; for a process that changes no file of conf/."""
    create = loader.create_defaults_list
    merge = loader.ConfigLoaderImpl._compose_config_from_defaults_list

    @wraps(create)
    def create_once(
        repo: IConfigRepository, config_name: str, overrides_list: list[Override], **options: bool
    ) -> DefaultsList:
        if {s.path for s in repo.get_sources() if s.scheme() == "file"} != {CONF}:
            return create(repo, config_name, overrides_list, **options)
        values = [word for word in overrides_list if _is_value(word, repo)]
        files = [word.input_line for word in overrides_list if not _is_value(word, repo)]
        key = (config_name, *files, *options.items())
        if key not in _lists:
            _lists[key] = create(repo, config_name, overrides_list, **options)
        made = _lists[key]
        return DefaultsList(made.defaults, made.defaults_tree, values, made.overrides)

    @wraps(merge)
    def merge_once(
        self: loader.ConfigLoaderImpl, defaults: list[Any], repo: IConfigRepository
    ) -> DictConfig:
        if not any(made.defaults is defaults for made in _lists.values()):
            return merge(self, defaults, repo)
        if id(defaults) not in _trees:
            _trees[id(defaults)] = merge(self, defaults, repo)
        return deepcopy(_trees[id(defaults)])

    loader.create_defaults_list = create_once
    loader.ConfigLoaderImpl._compose_config_from_defaults_list = merge_once


def _is_value(override: Override, repo: IConfigRepository) -> bool:
    """Return whether it sets a key, rather than choosing a file of a group."""
    return not override.is_sweep_override() and (
        isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)
    )
