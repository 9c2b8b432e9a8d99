"""The command `gcbench example`: copies of files to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shutil import copy

import gcbench
from gcbench.core.errors import ConfigError, near
from gcbench.runner.arguments import Arguments, read_arguments

PACKAGE = Path(gcbench.__file__).parent
EXAMPLES = {
    "own_training.py": (
        "your own training loop with gcbench.compress",
        "torchrun --nproc-per-node 2 own_training.py",
    ),
    "with_accelerate.py": ("a loop of accelerate", "accelerate launch with_accelerate.py"),
    "with_lightning.py": ("a Trainer of Lightning", "python with_lightning.py"),
    "with_transformers.py": (
        "a Trainer of transformers",
        "torchrun --nproc-per-node 2 with_transformers.py",
    ),
    "with_fsdp2.py": ("FSDP2 as in torchtitan", "torchrun --nproc-per-node 2 with_fsdp2.py"),
    "with_timm.py": ("a loop as timm's", "torchrun --nproc-per-node 2 with_timm.py"),
    "with_nanogpt.py": ("a loop as nanoGPT's", "torchrun --nproc-per-node 2 with_nanogpt.py"),
    "compare.ipynb": ("a notebook: sweeps, a DataFrame, curves", "jupyter lab compare.ipynb"),
    "example.sbatch": (
        "a batch file for Slurm, which queues its job again",
        "sbatch example.sbatch compressor=powersgd rank=2",
    ),
    "sky.yaml": (
        "a task of SkyPilot, which continues on another machine",
        'sky jobs launch sky.yaml --env TYPED="compressor=powersgd rank=2"',
    ),
    "trainjob.yaml": ("a TrainJob of Kubeflow Trainer", "kubectl create -f trainjob.yaml"),
    "ray_job.py": (
        "a job for a Ray cluster",
        "ray job submit --working-dir . -- python ray_job.py compressor=powersgd rank=2",
    ),
}


class Example(Arguments):
    """Copy an example into the current folder, to be edited there; without a name, list all."""

    usage = "gcbench example [NAME]"
    examples = "\ngcbench example own_training.py\n"


def example(typed: Sequence[str]) -> None:
    """Copy the examples that were named; raise ConfigError for an unknown one."""
    named = read_arguments(Example, typed).plain
    for name in named:
        if name not in EXAMPLES:
            known = near(name, EXAMPLES) or " or ".join(EXAMPLES)
            raise ConfigError(f"{name}: there is no such example; type {known}")
        if Path(name).exists():
            raise ConfigError(f"{name}: there is such a file already; move it away first")
    for name in named:
        copy(_folder() / name, name)
        print(f"{name}: type {EXAMPLES[name][1]}")
    if not named:
        for name, (about, _) in EXAMPLES.items():
            print(f"gcbench example {name:21}{about}")


def _folder() -> Path:
    """Return the folder of the examples, which a wheel has in the package."""
    installed = PACKAGE / "examples"
    return installed if installed.is_dir() else PACKAGE.parent / "scripts" / "examples"
