"""Every choice of conf/compressor minimizes a small quadratic with its default settings."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from method_cases import CHOICES, build_method, compose_method
from nightly import slow_but

from gcbench.runner.check.conservation import STEPS, nearness


class Case(NamedTuple):
    lr: float
    # The allowed distance to the minimizer after all steps, as a fraction of the initial one.
    nearness: float
    why: str
    steps: int = STEPS


# The rate is a fifth of 1 / L; without compression, 0.0014 of the initial distance is left.
USUAL = Case(0.1, 0.05, "the rule")
ONE_BIT = Case(0.25, 0.07, "one bit, no error feedback: most of a large value is lost")
UNUSUAL = {
    **dict.fromkeys(("bingrad_pb", "bingrad_b", "scaled_sign"), ONE_BIT),
    "signum": Case(0.03, 0.1, "every step is lr long in every coordinate: it stays within some lr"),
    "demo": Case(0.03, 0.1, "every step is lr long in every coordinate, of a few frequencies"),
    "dion": Case(0.25, 0.12, "every step is about lr long in every direction, with a momentum"),
    "dion2": Case(0.1, 0.25, "as dion, and a momentum decays only where half of it is sent"),
    "onebit_adam": Case(0.25, 0.1, "d = (m' - beta m) / (1 - beta) has ten times a code's error"),
    "ef21_muon": Case(0.1, 0.15, "sends 15 % of what changed, both ways, of a long momentum"),
    "dgc": Case(0.001, 0.05, "sends one value of each tensor in a step, and has a momentum", 1000),
    "top_k": Case(0.1, 0.15, "sends one value in 64: the residual's rest is many steps old"),
}


def reached_by(choice: str, lr: float, steps: int) -> float:
    # Otherwise no tensor here would be large enough to be compressed.
    settings = {"min_size": 0} if "min_size" in compose_method(choice) else {}
    return nearness(build_method(choice, **settings), lr, steps)


FAST = [*UNUSUAL, "none", "qsgd", "powersgd", "orq", "ef21", "maxnorm", "acpsgd"]


@pytest.mark.parametrize("choice", slow_but(FAST, CHOICES))
def test_it_descends_a_quadratic(choice: str) -> None:
    case = UNUSUAL.get(choice, USUAL)
    reached = reached_by(choice, case.lr, case.steps)
    assert reached < case.nearness, (
        f"compressor={choice} with lr={case.lr} came to {reached:.3g} of the first distance in "
        f"{case.steps} steps, not {case.nearness}; if that is right for it, add it to UNUSUAL with "
        "a rate, what it reaches, and why"
    )
