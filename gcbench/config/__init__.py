"""Compose and check a configuration.

This package does not import torch, so that help and error messages appear at once.
"""

from gcbench.config.budget import PAPER as PAPER
from gcbench.config.budget import budget_names as budget_names
from gcbench.config.checks import refuse_empty_sweep as refuse_empty_sweep
from gcbench.config.checks import refuse_twice as refuse_twice
from gcbench.config.compose import add_overrides as add_overrides
from gcbench.config.compose import compose_overrides as compose_overrides
from gcbench.config.compose import find_method as find_method
from gcbench.config.compose import help_of as help_of
from gcbench.config.compose import method_node as method_node
from gcbench.config.compose import open_nodes as open_nodes
from gcbench.config.compose import points_of as points_of
from gcbench.config.compose import register as register
from gcbench.config.compose import resolve_overrides as resolve_overrides
from gcbench.config.compose import split_sweep as split_sweep
from gcbench.config.compose import to_overrides as to_overrides
from gcbench.config.directory import choices_in as choices_in
from gcbench.config.directory import conf_directory as conf_directory
from gcbench.config.directory import method_files as method_files
from gcbench.config.directory import read_yaml as read_yaml
from gcbench.config.errors import COMPOSITION_ERRORS as COMPOSITION_ERRORS
from gcbench.config.errors import Config as Config
from gcbench.config.errors import ConfigError as ConfigError
from gcbench.config.errors import IdleKeyError as IdleKeyError
from gcbench.config.errors import RunDiverged as RunDiverged
from gcbench.config.errors import RunFailed as RunFailed
from gcbench.config.errors import as_known as as_known
from gcbench.config.errors import near as near
from gcbench.config.help import method_keys as method_keys
from gcbench.config.keys import read_knobs as read_knobs
from gcbench.config.methods import keys_of_optimizer as keys_of_optimizer
from gcbench.config.methods import read_method as read_method
from gcbench.config.naming import notices_of as notices_of
from gcbench.config.naming import row_directory as row_directory
from gcbench.config.naming import run_directory as run_directory
from gcbench.config.naming import run_name as run_name
from gcbench.config.reading import Arguments as Arguments
from gcbench.config.reading import Forms as Forms
from gcbench.config.reading import Option as Option
from gcbench.config.reading import read_arguments as read_arguments
from gcbench.config.reading import read_keys as read_keys
from gcbench.config.resolve import resolve as resolve
from gcbench.config.resolve import resolve_benchmark as resolve_benchmark
from gcbench.config.sentences import sentence_of as sentence_of
from gcbench.config.typed import readable as readable
