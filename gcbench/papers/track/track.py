"""The rules of a track: what its entries, which are methods of others, may choose."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from gcbench.core.fields import format_value
from gcbench.runner.conf_files import CHECKED
from gcbench.runner.differences import as_overrides, flat_differences
from gcbench.runner.identity import Flat

FIXED = ("model.", "dataset.", "trainer.")
LENGTH = ("trainer.epochs", "trainer.max_steps")  # which an entry may make shorter
CLASSES = ("estimator._target_", "optimizer._target_", "schedule._target_")
OURS = ("gcbench.", "torch.optim.")
SVRG = "gcbench.runner.train.svrg.SVRG"


@dataclass(frozen=True, config=CHECKED)
class Track:
    """The rules of a table's entries, which are runs of its row `entry` with another method."""

    target: float  # the test loss that the mean over seeds has to be below
    level: float  # of the test of the loss
    saving: float  # the least share of every baseline's bytes that an entry saves
    tokens: float  # the most that an entry may train on, in those of the baselines
    seeds: tuple[int, ...]

    def breaches(self, flat: Flat, rules: Flat) -> dict[str, str]:
        """Return the settings of a run that break the rules, as overrides, and why they do.

        `rules` are the settings of the row `entry`.
        """
        broken = {
            override: f"the track has {key}={format_value(pair[1])}"
            for key, pair in flat_differences(flat, rules).items()
            if key.startswith(FIXED) and key not in LENGTH
            for override in as_overrides({key: pair})
        }
        most = self.tokens * rules["trainer.epochs"]
        if (epochs := flat["trainer.epochs"]) > most:
            broken[f"trainer.epochs={epochs:g}"] = f"the track has at most {most:g}"
        for key in CLASSES:
            target = str(flat.get(key, OURS[0]))
            if not target.startswith(OURS):
                broken[f"{key}={target}"] = "an entry's own code is its method alone"
        if flat["estimator._target_"] == SVRG:
            broken["estimator=svrg"] = "it reads all data again, beyond the tokens of its steps"
        return broken
