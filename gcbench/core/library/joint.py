"""A compression whose workers load their states together, as no exchange would tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcbench.core.errors import ConfigError
from gcbench.core.library.agreement import differing
from gcbench.core.library.compression import Compression, Workers
from gcbench.core.reasons import in_one_line


class JointCompression(Compression):
    """A compression that loads a state only if all workers load states of the same steps."""

    def load_state_dict(self, state_dict: Mapping[str, Any], workers: Workers = "refuse") -> None:
        """Restore what `state_dict` returned on this worker; all workers have to call this.

        Raises:
            ConfigError: if a worker's state is not its own, or damaged, or workers saved theirs
                after different steps; no worker replaces anything then.
        """
        try:
            read, own = self._read_whole(state_dict, workers)
        except ConfigError as error:
            self._meet([str(error), {}])
            raise
        steps = self._steps_in(own)
        for worker, (refused, other) in enumerate(self._meet(["", steps])):
            if refused:
                raise ConfigError(f"worker {worker} cannot load its state: {refused}")
            if other != steps:
                theirs, own = differing(other, steps)
                raise ConfigError(
                    f"worker {worker} loads a state with steps={theirs}, and this one with {own}; "
                    "type load_state_dict on every worker, with what it saved after the same step"
                )
        self._replace(read, own)

    def _meet(self, value: Any) -> list[Any]:
        """Return what each worker has. Raises ConfigError if some do something else."""
        try:
            return self._gather(value)
        except (RuntimeError, ValueError) as error:  # of a message that never came, or is another
            raise ConfigError(
                f"load_state_dict: not all workers called it ({in_one_line(error)}); type it on "
                "every worker"
            ) from error

    def _steps_in(self, saved: Mapping[str, Any]) -> dict[str, int]:
        """Return the numbers of steps in a state, which all workers must have in common."""
        return {k: parts["shared"]["exchanges"] for k, parts in saved["exchanges"].items()}
