"""Compare the time of a step of virtual workers with that of its passes in plain PyTorch.

    scripts/turns virtual model=resnet18 dataset=cifar10 trainer.batch_size=16 trainer.workers=16
    scripts/turns virtual model=lstm dataset=wikitext2 trainer.batch_size=16 trainer.workers=16

`passes` is one forward and one backward pass per worker, whose gradients are discarded. `one pass`
is over the batches of all workers at once, and yields no gradient per worker. Methods and passes
take turns of three steps, of which the first is not timed. Everything runs on one thread.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch

from gcbench.runner.bench.timing import ratio_in_turn, turns
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.console import TextTable, markdown
from gcbench.runner.control import LocalControl
from gcbench.runner.data import Data
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.estimators import batch_of
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.scores import loss_of
from lib.contenders import Contender, GcbenchSteps
from lib.turns import refuse_fixed, time_in_turn, use_codecs

METHODS = {
    "dense fp32": ["compressor=none"],
    "QSGD 4 bits": ["compressor=qsgd", "bits=4", "bucket_size=512"],
    "top-k 1.6 %": ["compressor=top_k"],
    "scaled sign": ["compressor=scaled_sign"],
    "PowerSGD rank 2": ["compressor=powersgd", "rank=2"],
}
FIXED = [
    "trainer.launcher=virtual",
    "trainer.threads=1",
    "trainer.error_every=null",
    "logger.mode=disabled",
]
PASSES, ONE_PASS = "passes", "one pass"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/turns virtual",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=turns, default=5, help="turns, with two timed steps each")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=list(METHODS),
        metavar="METHOD",
        help=f"some of {', '.join(METHODS)}".replace("%", "%%"),
    )
    parser.add_argument("overrides", nargs="+", help="as for gcbench")
    typed = parser.parse_intermixed_args()
    refuse_fixed(typed.overrides, FIXED, "choose methods with --methods")
    keep_freed_memory()
    torch.set_num_threads(1)
    use_codecs()
    configs = {
        name: resolve_overrides([*typed.overrides, *METHODS[name], *FIXED])[0]
        for name in typed.methods
    }
    first = next(iter(configs.values()))
    data = make_data(first)
    contenders: dict[str, Contender] = {
        PASSES: Passes(first, data),
        ONE_PASS: Passes(first, data, at_once=True),
    }
    control = LocalControl()
    contenders |= {name: GcbenchSteps(config, data, control) for name, config in configs.items()}
    seconds = time_in_turn(contenders, control, typed.rounds)
    rows = [
        [name, f"{median(times):.3f}", f"{ratio_in_turn(times, seconds[PASSES]):.2f}"]
        for name, times in seconds.items()
    ]
    print(markdown(TextTable(["step", "seconds", "of the passes"], rows)))


class Passes(GcbenchSteps):
    """A forward and a backward pass per worker, or one for all, as in plain PyTorch."""

    def __init__(self, config: RunConfig, data: Data, at_once: bool = False) -> None:
        super().__init__(config, data, LocalControl())
        self._at_once = at_once

    def step(self) -> None:
        take_passes(self.run, self.progress, self._at_once)


def take_passes(run: Run, progress: Progress, at_once: bool = False) -> None:
    """Run one forward and backward pass per worker, or one for all, as in plain PyTorch."""
    model, task = run.replica.model.train(), run.replica.task
    batches = [batch_of(run, progress.step, row) for row in run.replica.workers]
    if at_once:
        all_inputs, all_targets = zip(*batches, strict=True)
        batches = [(torch.cat(all_inputs), torch.cat(all_targets))]
    for inputs, targets in batches:
        if run.settings.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        model.zero_grad()
        outputs = model(inputs)
        outputs = outputs[0] if run.replica.recurrent else outputs
        loss_of(task, outputs, targets).backward()
    model.zero_grad()
    run.clock.stop()  # discards laps of loading batches, which belong to no step
