"""What sweeps vary, and values of runs for sweepers that search, such as `hydra/sweeper=optuna`.

They choose points by the values of earlier ones, and minimize them.
"""

from __future__ import annotations

from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from gcbench.core.errors import ConfigError
from gcbench.runner.settings.config import RunConfig

if TYPE_CHECKING:
    from gcbench.runner.records.schema import Result

WORST = 1e30  # finite, as from two infinite objectives Optuna's TPE computes NaN


def is_search(hydra_config: HydraConf | DictConfig) -> bool:
    """Return whether this is a sweep whose points depend on the values of earlier ones."""
    target: str = hydra_config.sweeper._target_
    return hydra_config.mode is RunMode.MULTIRUN and not target.endswith("BasicSweeper")


def swept_keys(hydra_config: HydraConf | DictConfig) -> list[str]:
    """Return the keys that differ in the rows of a sweep or the points of a search."""
    searched = hydra_config.sweeper.get("params") or {}
    typed = OverridesParser.create().parse_overrides(list(hydra_config.overrides.task))
    return [*searched, *(one.key_or_group for one in typed if one.is_sweep_override())]


def count_objectives(config: RunConfig, hydra_config: HydraConf) -> int:
    """Return how many values the sweeper wants of each run; 0 if it does not search.

    Raises ConfigError for a sweeper that would maximize them, and for a run without tests.
    """
    if not is_search(hydra_config):
        return 0
    if config.trainer.eval_every is None:
        raise ConfigError(
            "trainer.eval_every=null: a search compares tests; type a number of epochs"
        )
    typed: Any = hydra_config.sweeper.get("direction", "minimize")
    directions = [typed] if isinstance(typed, str) or hasattr(typed, "name") else list(typed)
    names = [getattr(direction, "name", direction) for direction in directions]
    if names not in (["minimize"], ["minimize", "minimize"]):
        raise ConfigError(
            f"hydra.sweeper.direction={','.join(names)}: a run returns its test error in percent, "
            "perplexity or loss, and then the MiB that a worker sent; type "
            "hydra.sweeper.direction=minimize, or [minimize,minimize] for both"
        )
    return len(names)


def is_of_sweeper(error: Exception) -> bool:
    """Return whether a sweeper raised this, as for a space that it cannot search, and no run."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    began = [name.startswith("hydra_plugins.") and "sweeper" in name for name in modules]
    return any(began) and not any(n.startswith("gcbench") for n in modules[began.index(True) :])


def explain_sweeper_error(error: Exception) -> str:
    """Return why a sweeper failed: the error's text, or else its type and place."""
    if text := str(error):
        return text
    *_, (frame, line) = walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "")
    place = f"{type(error).__name__} in {module}, line {line}"
    if not module.startswith("hydra_plugins."):
        return f"{place}; type HYDRA_FULL_ERROR=1 before the command to see how it came there"
    return f"{place}; it takes choice(a,b), range(a,b) and interval(a,b)"


def objectives(result: Result | None) -> list[float]:
    """Return the test error in percent (or perplexity, or loss) and the MiB sent per worker.

    Both are WORST without a result, as for a run that has diverged, and the error of a score that
    is infinite.
    """
    from gcbench.runner.records.metrics import MAIN_SCORES
    from gcbench.runner.records.schema import BITS_PER_MIB
    from gcbench.runner.report.measures import LOWER, measure  # imports pandas

    if result is None or result.bits_sent is None:
        return [WORST, WORST]
    name = next((name for name in MAIN_SCORES if name in (result.test or {})), "loss")
    value = measure(name, result)
    error = WORST if value is None else value if name in LOWER else 100 - value
    return [error, result.bits_sent.per_worker / BITS_PER_MIB]
