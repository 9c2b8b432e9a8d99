"""Measures that columns of tables read from a result, and which way is better."""

from __future__ import annotations

import pytest
from results import plain_result

from gcbench.runner.records.schema import PHASES, Collective, Result
from gcbench.runner.report.measures import LOWER, MEASURES, measure

# The last ones are encode, exchange, wait, decode, update and step.
SECONDS = dict(zip(PHASES, (0.5, 1.0, 1.0, 0.1, 0.2, 0.4, 0.3, 0.5, 4.0), strict=True))


def result(timed: bool = True) -> Result:
    times = {phase: {"mean": value, "max": 2 * value} for phase, value in SECONDS.items()}
    return plain_result(seconds=times if timed else None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share_of_communication", 25.0),  # a wait for others is communication too
        ("step_milliseconds", 4000.0),
        ("exchange_milliseconds", 200.0),
        ("coding_milliseconds", 400.0),
    ],
)
def test_times_are_means_over_processes(name: str, value: float) -> None:
    assert measure(name, result()) == pytest.approx(value)
    assert measure(name, result(timed=False)) is None


def test_samples_and_tokens_per_second_are_of_all_workers() -> None:
    """4 workers take a batch of 8 each in 4 seconds; results of before have this number, too."""
    text = result().model_copy(update={"workers": 4, "tokens_per_sample": 30})
    assert measure("samples_per_second", text) == 8
    assert measure("tokens_per_second", text) == 240
    assert measure("tokens_per_second", text.model_copy(update={"tokens_per_sample": None})) is None
    assert measure("samples_per_second", result(timed=False)) is None


def test_an_exchange_on_a_link_is_that_of_the_cost_model() -> None:
    """4 workers all-reduce 8 Mbit in every second step: 6 rounds of a quarter, at 950 Mbit/s."""
    reduced = Collective(
        level="all",
        collective="all_reduce",
        workers=4,
        messages=5,
        sent_bits=5 * 8e6,
        received_bits=0,
        wire_bits=0,
    )
    run = plain_result().model_copy(update={"workers": 4, "steps": 10, "collectives": [reduced]})
    expected = 1e3 * 0.5 * 6 * (2e6 / 950e6 + 50e-6)
    assert measure("link_milliseconds", run, network="1gbit") == pytest.approx(expected)
    assert measure("link_milliseconds", plain_result(), network="1gbit") is None


def test_high_is_good_for_accuracies_ratios_and_speed_alone() -> None:
    """All other measures of quality are better when low; sizes and times are not in LOWER."""
    high = {"accuracy", "best_accuracy", "top5_accuracy", "ratio", "analytic_ratio", "coded_ratio"}
    high |= {
        "bf16_ratio",
        "received_ratio",
        "tta_accuracy",
        "cosine",
        "samples_per_second",
        "tokens_per_second",
        "goodput",
        "useful_share",
    }
    sizes = {"data_mib_per_epoch", "total_bits", "shannon_total_bits", "parameters"}
    sizes |= {"peak_mib", "state_mib", "compressed"}
    times = {"share_of_communication", "virtual_seconds"} | {
        name for name in MEASURES if name.endswith("milliseconds")
    }
    assert MEASURES.keys() - high - sizes - times == LOWER


def test_workers_of_a_node_share_the_link_of_a_hierarchical_exchange() -> None:
    """Both workers of a node send 8 Mbit at once to the other node; inside, nothing takes time."""
    levels = (("inside", "all_reduce"), ("between", "all_gather"))
    bits = {"messages": 1, "sent_bits": 8e6, "received_bits": 0, "wire_bits": 0}
    collectives = [
        Collective(level=level, collective=collective, workers=2, **bits)
        for level, collective in levels
    ]
    facts = {"workers": 4, "steps": 1, "collectives": collectives}
    run = plain_result().model_copy(update=facts)
    expected = 1e3 * (2 * 8e6 / 950e6 + 50e-6)
    assert measure("link_milliseconds", run, network="1gbit") == pytest.approx(expected)


def test_bits_and_errors_by_hand() -> None:
    """1,000 parameters and ten steps; a code at the bound would send 4,000 bits in a step."""
    beside = {"per_epoch_mib": 0.0, "dense_per_step": 32e3, "ratio": 4.0}
    run = plain_result(
        parameters=1000,
        steps=10,
        bits_sent={"per_worker": 8e4, "per_worker_max": 9e4, "per_step": 8e3, **beside},
        bits_wire={"per_worker": 24e4, "per_worker_max": 27e4, "per_step": 24e3, **beside}
        | {"dense_per_step": 48e3, "ratio": 2.0},
        shannon_bits_per_step=4000.0,
        compression_error={"relative": 0.5, "vnmse": 0.3, "cosine": 0.9, "samples": 2},
    )
    expected = {
        "ratio": 4,
        "received_ratio": 2,
        "coded_ratio": 8,
        "total_bits": 8e4,
        "shannon_total_bits": 4e4,
    }
    expected |= {"relative_error": 0.5, "vnmse": 0.3, "cosine": 0.9}
    assert {name: measure(name, run) for name in expected} == expected


def test_the_rounding_of_a_mean_is_no_error() -> None:
    """A mean of fp32 gradients is not exact; a run without compression has error 0 all the same."""
    for relative, vnmse, expected in ((3e-8, 9e-16, (0.0, 0.0)), (2e-6, 4e-12, (2e-6, 4e-12))):
        error = {"relative": relative, "vnmse": vnmse, "cosine": 1.0, "samples": 3}
        one = plain_result(compression_error=error)
        assert (measure("relative_error", one), measure("vnmse", one)) == expected
