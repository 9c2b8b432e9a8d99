"""sigma: steps beside those of dense bf16 with overlap; which method is surely the best."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from gcbench.core.errors import ConfigError
from gcbench.runner.predict.command import predict_steps
from gcbench.runner.predict.devices import read_device
from gcbench.runner.predict.sigma import (
    BELOW,
    OVERLAP,
    SOME,
    UNCOVERED,
    Bounded,
    Cost,
    Form,
    KeptRho,
    Workload,
    bits_a_value,
    cost_of,
    flops_per_second,
    judge,
    times_shorter,
    workload_on,
)
from gcbench.runner.predict.subject import flops_of, make_methods

WORKLOAD = Workload(tokens=8192, buckets=100, backward_share=0.6, compute_seconds=1e-6)
DENSE = Cost({"": Form(1.0, 0.002)}, 1, True)
FEW = Cost({"gather": Form(0.1, 0.3), "scatter_coded": Form(0.05, 0.3)}, 1, True)
SHAPES = {"a": (1000, 500), "b": (500, 1000)}


def test_sigma_goes_from_the_price_of_coding_to_the_ratio_of_bits() -> None:
    assert times_shorter(DENSE, FEW, 1e-6, WORKLOAD) == pytest.approx(1.002 / 1.3, abs=1e-4)
    assert times_shorter(DENSE, FEW, 1e6, WORKLOAD) == pytest.approx(10, rel=1e-4)
    assert times_shorter(DENSE, FEW, 1e6, WORKLOAD, any_exchange=True) == pytest.approx(
        20, rel=1e-4
    )


def test_exchanges_hide_under_the_backward_pass_but_for_the_last_bucket_and_local_steps() -> None:
    hidden = 0.99 * 0.6
    assert DENSE.step(2, WORKLOAD) == pytest.approx(1 + 0.002 + 2 - hidden)
    assert DENSE.step(0.5, WORKLOAD) == pytest.approx(1 + 0.002 + 0.005)
    whole = Cost({"": Form(1.0, 0.002)}, 1, in_buckets=False)
    assert whole.step(2, WORKLOAD) == pytest.approx(3.002)
    local = Cost({"": Form(2.0, 0.001)}, 30, in_buckets=True)
    assert local.step(3, WORKLOAD) == pytest.approx(1 + (0.001 + 6) / 30)


def test_costs_are_those_of_the_metered_messages_and_of_the_profile() -> None:
    device = read_device("cpu")
    workload = workload_on(device, 8192, 100)
    batch = max(device.models["resnet18"].seconds)
    rate = 3 * flops_of("resnet18") * batch / device.models["resnet18"].seconds[batch]
    assert flops_per_second(device) >= rate
    assert workload.compute_seconds == pytest.approx(6 * 8192 / flops_per_second(device))
    (dense,) = make_methods("bf16", [], SHAPES, device, 1)
    (qsgd,) = make_methods("qsgd", ["bits=4", "min_size=0"], SHAPES, device, 1)
    (form,) = cost_of({"": dense}, 4, device, workload).forms.values()
    assert form.bits == pytest.approx(1)
    (form,) = cost_of({"gather": qsgd}, 4, device, workload).forms.values()
    bits = bits_a_value(qsgd, 4)
    assert 4 < bits < 5 and form.bits == pytest.approx(3 * bits / (2 * 3 / 4 * 16))
    codec = device.codec("qsgd", 4_000_000)
    seconds = codec.aggregate_seconds + 3 * codec.decode_seconds
    assert form.coding == pytest.approx(seconds / 4e6 / workload.compute_seconds)


def test_a_method_wins_only_where_that_is_sure() -> None:
    some, other = Bounded("some", 2.0, 1.8, 2.2), Bounded("other", 1.5, 1.4, 1.7)
    sure = judge("dense", [other, some])
    assert (sure.label, sure.value, sure.why) == ("some", 2.0, "")
    assert judge("dense", [some, other._replace(high=2.0)]).why == SOME, "as both pay"
    assert judge("dense", [some, other._replace(high=1.9)]).label == "some", "though both have 1.85"
    assert judge("dense", [some, other._replace(high=1.9)]).why == "", "their ratio is above 1"
    assert judge("dense", [some, other._replace(value=None, low=0.0, high=1.9)]).why == SOME
    assert judge("dense", [some._replace(low=1.01), other._replace(low=0.9)]).why == OVERLAP
    assert judge("dense", [some._replace(low=0.9)]).why == OVERLAP, "as dense training is at 1"
    assert judge("dense", [Bounded("some", 1.04, 1.02, 1.06)]).why == BELOW
    assert judge("dense", [Bounded("some", None, 0.0, 0.8)]).why == BELOW
    bounded = Bounded("bounded", None, 0.0, 1.5)
    assert judge("dense", [bounded]).why == UNCOVERED, "a bound says nothing of whether it pays"
    assert judge("dense", [Bounded("some", 0.9, 0.8, 1.0), bounded]).why == OVERLAP
    nothing = Bounded("some", None, 0.0, math.inf)
    assert judge("dense", [nothing]).why == UNCOVERED
    beside = judge("dense", [nothing, some])
    assert (beside.label, beside.uncovered, sure.uncovered) == ("some", 1, 0)


KEPT = {
    "parameters": [1e5, 1e6],
    "workers": [4, 16],
    "lengths": [1, 2],
    "dense": {"family": "bf16"},
    "methods": [
        {
            "label": "QSGD, 4 bits",
            "family": "qsgd",
            "every": 1,
            "bits": 4.2,
            "rho": [[[[1, 0.9, 1.1], None], [[2, None, 3]] * 2], [[[4, 3, 5]] * 2] * 2],
        }
    ],
}


def test_kept_rho_is_interpolated_for_methods_that_send_as_much() -> None:
    device, kept = read_device("cpu"), KeptRho(KEPT)
    shapes = {"a": (1000, 100)}
    qsgd, few = (
        make_methods("qsgd", [f"bits={bits}", "min_size=0"], shapes, device, 1)[0]
        for bits in (4, 2)
    )
    assert kept.of(qsgd, 4, 1) == ("QSGD, 4 bits", 1, 0.9, 1.1)
    between = kept.of(qsgd, 8, 1)
    assert between and between.value == pytest.approx(math.sqrt(2))
    assert (between.low, between.high) == (0.0, 3)
    assert kept.of(qsgd, 4, 1.5) is None and kept.of(qsgd, 32, 1) is None
    assert kept.of(few, 4, 1) is None and kept.of(qsgd.at_every(8), 4, 1) is None
    (large,) = make_methods("qsgd", ["min_size=0"], {"a": (1000, 1000)}, device, 1)
    (larger,) = make_methods("qsgd", ["min_size=0"], {"a": (2000, 1000)}, device, 1)
    assert kept.of(large, 16, 2) == ("QSGD, 4 bits", 4, 3, 5) and kept.of(larger, 16, 2) is None


def test_pays_says_sigma_rho_and_their_quotient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("shapes: [[1000, 100]]\nseconds: {16: 0.001}\n")
    typed = ["pays", "shapes=mine.yaml", "device=cpu", "network=1gbit", "workers=4"]
    typed += ["compressor=none,bf16,qsgd,top_k,terngrad", "min_size=0", "format=csv"]
    predict_steps(typed)
    assert "/ -" in capsys.readouterr().out, "terngrad is not in the ladder"
    file = Path("outputs/figures/modern/ladder/map.json")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(KEPT))
    predict_steps(typed)
    rows = csv.DictReader(capsys.readouterr().out.splitlines())
    told = {row["method"].split()[0]: row["W=4 1gbit: sigma / rho"] for row in rows}
    sigma, quotient = told["qsgd"].split(" / 1.00 = ")
    assert quotient.startswith(f"{sigma} [")
    low = float(quotient.split("[")[1].split(",")[0])
    assert low == pytest.approx(float(sigma) / 1.1, abs=0.01)
    assert " / 1.00 = " in told["bf16"] and told["top_k"].endswith(" / -")
    predict_steps([*typed[:-1], "length=2"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"{sigma} / - " in said
    assert "known at most for 100,000 to 1,000,000 parameters, 4 to 16 workers, T = 1 to 2" in said
    with pytest.raises(ConfigError, match="length=2 target=27: a target has the lengths"):
        predict_steps([*typed, "length=2", "target=27"])
