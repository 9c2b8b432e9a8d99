"""Composing and checking a configuration. Imports no torch, so that help and mistakes answer at once."""

from __future__ import annotations

from gcbench.config.errors import Config, ConfigError, RunFailed
from gcbench.config.links import emulated_link
from gcbench.config.names import fingerprint
from gcbench.config.resolve import (
    bench_name,
    budget_notice,
    compose_words,
    conf_directory,
    first_words,
    learning_rate_notice,
    method_node,
    register,
    resolve,
    resolve_benchmark,
    run_directory,
    run_name,
)

__all__ = [
    "Config",
    "ConfigError",
    "RunFailed",
    "bench_name",
    "budget_notice",
    "compose_words",
    "conf_directory",
    "emulated_link",
    "first_words",
    "fingerprint",
    "learning_rate_notice",
    "method_node",
    "register",
    "resolve",
    "resolve_benchmark",
    "run_directory",
    "run_name",
]
