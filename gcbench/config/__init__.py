"""Compose and check a configuration.

This package does not import torch, so that help and error messages appear at once.
"""

from __future__ import annotations

from gcbench.config.budget import PAPER, budget_names
from gcbench.config.checks import refuse_empty_sweep
from gcbench.config.command_line import resolve_method, resolve_overrides, to_overrides
from gcbench.config.compose import (
    compose_methods,
    compose_overrides,
    help_of,
    method_node,
    open_nodes,
    split_sweep,
)
from gcbench.config.directory import choices_in, conf_directory, read_yaml
from gcbench.config.errors import (
    COMPOSITION_ERRORS,
    Config,
    ConfigError,
    IdleKeyError,
    RunDiverged,
    RunFailed,
)
from gcbench.config.help import method_keys
from gcbench.config.notices import notices_of, start_notice
from gcbench.config.reading import (
    Arguments,
    Option,
    near,
    read_arguments,
    read_keys,
    refuse_unread,
)
from gcbench.config.register import register
from gcbench.config.resolve import resolve, resolve_benchmark
from gcbench.config.run_name import bench_name, row_directory, run_directory, run_name
from gcbench.config.sentences import sentence_of

__all__ = [
    "COMPOSITION_ERRORS",
    "Arguments",
    "Config",
    "ConfigError",
    "IdleKeyError",
    "Option",
    "PAPER",
    "RunDiverged",
    "RunFailed",
    "bench_name",
    "budget_names",
    "choices_in",
    "compose_methods",
    "compose_overrides",
    "conf_directory",
    "help_of",
    "method_keys",
    "method_node",
    "near",
    "notices_of",
    "open_nodes",
    "read_arguments",
    "read_keys",
    "read_yaml",
    "refuse_empty_sweep",
    "refuse_unread",
    "register",
    "resolve",
    "resolve_benchmark",
    "resolve_method",
    "resolve_overrides",
    "row_directory",
    "run_directory",
    "run_name",
    "sentence_of",
    "split_sweep",
    "start_notice",
    "to_overrides",
]
