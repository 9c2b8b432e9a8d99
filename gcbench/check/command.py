"""The commands `gcbench check` and `gcbench methods`; torch is imported when words are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gcbench.config import Config, Words, compose_methods, key, option, read_words


@dataclass
class Check(Words):
    """Runs the tests that every method of gcbench passes on a method of your own: a class by its
    dotted name, or compressor=NAME, and settings as key=value."""

    usage = "gcbench check [gpu] CLASS | compressor=NAME [key=value ...] [--config-dir DIR]"
    examples = """
gcbench check my_package.MyMethod rank=2
gcbench check --config-dir my_conf compressor=mine rank=2
gcbench check gpu --help
"""
    takes_other_keys = True

    config_dir: str | None = option("a folder with your compressor/NAME.yaml")


@dataclass
class CheckGPU(Words):
    """Compiles every kernel that methods call for an H100 and watches a step of each, where no GPU
    is needed: registers, spills, launches, types that NCCL has, and where the host would wait."""

    usage = "gcbench check gpu [CLASS | compressor=NAME [key=value ...]] [kernel=NAME]"
    examples = """
gcbench check gpu
gcbench check gpu compressor=qsgd bits=2 kernel=encode
gcbench check gpu my_package.MyMethod rank=2
"""
    takes_other_keys = True

    kernel: tuple[str, ...] = key((), "names of the kernels to compile; all where none is typed")
    config_dir: str | None = option("a folder with your compressor/NAME.yaml")


@dataclass
class Methods(Words):
    """Lists all methods, or those named: what they are, their knobs, what they promise, and,
    measured, what they send."""

    usage = "gcbench methods [NAME ...] [measure=true] [--config-dir DIR]"

    measure: bool = key(
        False, "true: also what each sends, measured in a step; with names it always is"
    )
    config_dir: str | None = option("a folder with your compressor/NAME.yaml, to be listed too")


def check(typed: Sequence[str]) -> None:
    if typed[:1] == ["gpu"]:
        return check_gpu(typed[1:])
    words = read_words(Check, typed)
    from gcbench.check.report import check_method
    from gcbench.check.subject import subject_of

    if not check_method(subject_of(words.plain, words.others, words.config_dir)):
        sys.exit(1)


def check_gpu(typed: Sequence[str]) -> None:
    words = read_words(CheckGPU, typed)
    from gcbench.check import gpu
    from gcbench.check.methods import choices
    from gcbench.check.subject import subject_of

    nodes: dict[str, Config]
    if words.plain or words.others:
        label = " ".join([*words.plain, *words.others])
        nodes = {label: subject_of(words.plain, words.others, words.config_dir).typed}
    else:
        composed = compose_methods(list(choices(words.config_dir)), words.config_dir)
        nodes = {name: node for name, (node, _) in composed.items()}
    if not gpu.check_gpu(nodes, words.kernel):
        sys.exit(1)


def methods(typed: Sequence[str]) -> None:
    words = read_words(Methods, typed)
    from gcbench.check.methods import list_methods

    list_methods(words.plain, words.measure or bool(words.plain), words.config_dir)
