"""Make Hydra read and merge the same files of conf/ only once per process.

Hydra takes 0.15 s to compose a command line, nearly all of it to read and merge files, although
tests mostly set values of keys. With this cache they compose the same tree in a tenth of the time:
see test_config.py. Folders other than conf/ are read anew each time. Cached objects are kept as
pickles where possible, because a pickle is copied five times as fast as the tree itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial, wraps
from typing import Any, TypeVar, cast

from hydra._internal import config_loader_impl as loader
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, _utils, base

from gcbench.core.conf import conf_directory

CONF = str(conf_directory())
T = TypeVar("T")
_files: dict[str, Callable[[], ConfigResult | None]] = {}
_lists: dict[tuple[object, ...], DefaultsList] = {}
_trees: dict[int, Callable[[], DictConfig]] = {}  # by id of the list of files, which `_lists` keeps


def merge_files_once() -> None:
    """Make Hydra cache what it reads and merges, in a process that changes no file of conf/."""
    load = ConfigRepository.load_config
    create = loader.create_defaults_list
    merge = loader.ConfigLoaderImpl._compose_config_from_defaults_list

    @wraps(load)
    def load_once(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        if not _has_only_conf(self):
            return load(self, config_path)
        if config_path not in _files:
            _files[config_path] = _make_copier(load(self, config_path))
        return _files[config_path]()

    @wraps(create)
    def create_once(
        repo: IConfigRepository, config_name: str, overrides_list: list[Override], **options: bool
    ) -> DefaultsList:
        if not _has_only_conf(repo):
            return create(repo, config_name, overrides_list, **options)
        values = [override for override in overrides_list if _is_value(override, repo)]
        files = [
            override.input_line for override in overrides_list if not _is_value(override, repo)
        ]
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
            _trees[id(defaults)] = _make_copier(merge(self, defaults, repo))
        return _trees[id(defaults)]()

    ConfigRepository.load_config = load_once  # type: ignore[method-assign]
    base.parse = _utils.parse = cache(base.parse)  # parses interpolations
    ConfigStore.__deepcopy__ = lambda self, memo: self  # the copies are only read
    loader.create_defaults_list = create_once
    loader.ConfigLoaderImpl._compose_config_from_defaults_list = merge_once


def _make_copier(made: T) -> Callable[[], T]:
    """Return a function that returns a new copy of `made` as it is now."""
    try:
        data = pickle.dumps(made)
    except pickle.PicklingError:  # schemas that our plugin makes for submitit's launchers
        return partial(deepcopy, deepcopy(made))
    return lambda: cast(T, pickle.loads(data))


def _has_only_conf(repo: IConfigRepository) -> bool:
    return {s.path for s in repo.get_sources() if s.scheme() == "file"} == {CONF}


def _is_value(override: Override, repo: IConfigRepository) -> bool:
    """Return whether an override sets a key, rather than choosing a file of a group."""
    return not override.is_sweep_override() and (
        isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)
    )
