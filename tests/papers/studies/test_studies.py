"""Every study with small settings: its claim, and checks that the measurement works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from gcbench.core.errors import ConfigError
from gcbench.papers.ecqsgd.ecq_stability import EcqStability
from gcbench.papers.figures.error_figure import draw_error_by_bits
from gcbench.papers.maxnorm.multi_scale_error import MultiScaleError
from gcbench.papers.modern.diloco_measured import DilocoMeasured
from gcbench.papers.modern.ring_error import RingError
from gcbench.papers.modern.turboquant import Turboquant
from gcbench.papers.orq.communication_times import CommunicationTimes
from gcbench.papers.orq.gradient_levels import GradientLevels
from gcbench.papers.powersgd.decode_scaling import DecodeScaling
from gcbench.papers.powersgd.low_rank import SvdCost, WarmStart, _late
from gcbench.papers.qsgd.quantizer_bounds import QuantizerBounds
from gcbench.papers.qsgd.zero_codes import ZeroCodes
from gcbench.papers.studies.error_by_bits import ErrorByBits
from gcbench.papers.studies.gradients import Layers
from gcbench.papers.studies.study import Study
from gcbench.papers.studies.wire_error import WireError

Rows = Mapping[str, dict[str, Any]]


def rows(study: Study) -> Rows:
    return {row["row"]: row for row in study.rows()}


def test_communication_times_of_the_papers_networks() -> None:
    """orq-02: the printed times are met within a millisecond, except GoogLeNet's.

    GoogLeNet's does not follow from its size.
    """
    printed = {"AlexNet": 195, "VGG-19": 460, "DenseNet-161": 92, "GoogLeNet": 44, "ResNet-50": 82}
    for name, row in rows(CommunicationTimes()).items():
        assert round(row["parameters"], 1) == row["printed_parameters"]
        for found in (row["communication_milliseconds"], row["milliseconds_of_printed_parameters"]):
            assert (abs(found - printed[name]) < 1) == (name != "GoogLeNet")


def test_sums_on_a_wire_lose_more_with_workers_and_those_in_fp32_do_not() -> None:
    methods = (
        "bf16",
        "bf16 accumulate=fp32",
        "mxfp8 exchange=ring",
        "mxfp8 exchange=scatter_coded",
    )
    found = rows(WireError(methods=methods, workers=(4, 64), values=2**12))
    errors = {method: [found[f"{method}, W={w}"]["vnmse"] for w in (4, 64)] for method in methods}
    assert errors["bf16"][1] > 5 * errors["bf16"][0]
    assert errors["mxfp8 exchange=ring"][1] > 5 * errors["mxfp8 exchange=ring"][0]
    for method in ("bf16 accumulate=fp32", "mxfp8 exchange=scatter_coded"):
        assert errors[method][1] < errors[method][0]
    assert {round(row["bits"], 2) for row in found.values()} == {8.25, 16}


def test_bounds_hold_and_are_nearly_met() -> None:
    """qsgd-02, qsgd-03, qsgd-04: the bounds hold everywhere.

    Flat vectors with one level nearly reach the bounds on variance and sparsity.
    """
    found = rows(QuantizerBounds(values=[256, 1024], levels=[1, 4, 32], seeds=100))
    assert len(found) == 18
    for row in found.values():
        assert row["variance"] <= row["variance_bound"] and row["nonzeros"] <= row["nonzeros_bound"]
        assert 32 < row["sparse_code_bits"] <= row["sparse_code_bound_bits"]
    tight = found["flat, n=1024, s=1"]
    assert (
        tight["variance"] > 0.8 * tight["variance_bound"]
        and tight["nonzeros"] > 0.8 * tight["nonzeros_bound"]
    )
    assert tight["sparse_code_bits"] > 0.5 * tight["sparse_code_bound_bits"]
    assert found["normal, n=1024, s=32"]["bits_a_value"] == pytest.approx(2.8, abs=0.2)


def test_orq_errs_least_and_quantizers_use_their_levels_as_the_paper_says(recorded: str) -> None:
    """orq-04, orq-09, orq-15 hold at every recorded step."""
    study = GradientLevels(recorded=recorded)
    found = rows(study)
    assert (
        study.settings()["model"] == "mlp"
        and study.settings()["seed"] == 1
        and "window" not in study.settings()
    )
    assert list(found)[:6] == ["FP", "QSGD-9", "Linear-9", "ORQ-9", "BinGrad-pb", "BinGrad-b"]
    for step, _ in enumerate(found["FP"]["by_step"]):
        now = {name: row["by_step"][step] for name, row in found.items()}
        for s in (3, 5, 9):
            assert now[f"ORQ-{s}"]["vnmse"] < now[f"QSGD-{s}"]["vnmse"]
            assert now[f"ORQ-{s}"]["vnmse"] < 1.02 * now[f"Linear-{s}"]["vnmse"]
        assert now["BinGrad-b"]["vnmse"] < now["BinGrad-pb"]["vnmse"] < now["ORQ-3"]["vnmse"]
        assert abs(now["ORQ-9"]["squared_bias"]) < 0.05 * now["BinGrad-pb"]["squared_bias"]
        assert now["BinGrad-pb"]["squared_bias"] < now["BinGrad-b"]["squared_bias"]
        deterministic = now["BinGrad-b"]
        assert deterministic["squared_bias"] == pytest.approx(deterministic["vnmse"], rel=0.05)
        entropies = [now[f"{name}-9"]["code_entropy_bits"] for name in ("QSGD", "ORQ", "Linear")]
        assert sorted(entropies) == entropies and entropies[-1] < 3.17
        assert now["ORQ-9"]["wasserstein"] < min(
            now["QSGD-9"]["wasserstein"], now["Linear-9"]["wasserstein"]
        )
        assert all(
            sum(row["shares"]) == pytest.approx(1) for name, row in now.items() if name != "FP"
        )
    first = torch.load(f"{recorded}/step-000040.pt")
    assert found["FP"]["step"] == 40
    for row in found.values():
        histogram = row["histogram"]
        counted = sum(histogram["counts"]) + histogram["below"] + histogram["above"]
        assert len(histogram["counts"]) == 101 and counted == first["gradients"].numel()
        assert histogram["high"] == pytest.approx(2.5 * float(first["gradients"].std()))


def test_memories_are_bounded_below_lambda_1_and_grow_far_above() -> None:
    """ecq-10: residuals grow far above lambda = 1 with the 2-norm; with the maximum none grows."""
    found = rows(EcqStability(sizes=[256], betas=[1.0], alphas=[0.2, 0.9], values=1024, steps=120))
    l2, linf = found["l2, beta=1, d=256"], found["linf, beta=1, d=256"]
    assert l2["gamma"] == 4 and l2["alpha_of_lambda_1"] == pytest.approx(0.4)
    assert l2["lambdas"] == [pytest.approx(0.8), pytest.approx(3.25)]
    assert (l2["largest_bounded_alpha"], l2["smallest_growing_alpha"]) == (0.2, 0.9)
    assert l2["bounded_where_lambda_is_below_1"] and linf["bounded_where_lambda_is_below_1"]
    assert (linf["largest_bounded_alpha"], linf["smallest_growing_alpha"]) == (0.9, None)
    settled, growing = l2["residual_by_alpha"]
    assert settled[-1] < 10 < 100 < growing[-1] and len(settled) == len(l2["steps"])


def test_codes_without_an_error_have_no_residual_that_grows() -> None:
    """A bucket of one value is its own maximum."""
    found = rows(
        EcqStability(sizes=[1], norms=["linf"], betas=[1.0], alphas=[0.1], values=8, steps=20)
    )
    assert found["linf, beta=1, d=1"]["growths"] == [0]


def test_decoding_grows_with_the_workers_only_where_codes_are_gathered() -> None:
    """powersgd-16: decoding time and payload of one of 32 workers, relative to one of 2.

    Gathered codes take four times as long or more, and sums as long; a busy machine adds noise.
    """
    found = rows(DecodeScaling(workers=[2, 32], model="resnet20", rounds=15))
    for name in ("signum", "qsgd"):
        assert found[f"{name}, W=32"]["received_over_first"] == 31
        assert found[f"{name}, W=32"]["decode_over_first"] > 2
    assert found["powersgd, W=32"]["received_over_first"] == 1
    assert found["powersgd, W=32"]["decode_over_first"] < 2
    assert 1 < found["qsgd_sum, W=32"]["received_over_first"] < 2  # the sum of 32 codes is wider


def test_an_svd_costs_a_multiple_of_a_step_of_powersgd() -> None:
    """powersgd-17."""
    found = rows(SvdCost(model="resnet20", rounds=3))
    assert found["PowerSGD, rank 2"]["over_powersgd"] == 1
    assert (
        found["SVD of every matrix"]["over_powersgd"] > 1.5
        and found["Atomo, rank 2"]["over_powersgd"] > 1.5
    )


def test_a_warm_start_comes_nearer_to_the_best_approximation(recorded: str) -> None:
    """powersgd-08: with the residual of error feedback, as in training."""
    found = rows(WarmStart(recorded=recorded))
    warm, cold, best = (
        found[name] for name in ("Warm start", "Without warm start", "Best approximation")
    )
    assert best["over_best"] == pytest.approx(1, abs=1e-4) == best["over_best_with_residual"]
    assert 1 < warm["over_best_with_residual"] < cold["over_best_with_residual"]
    assert found["Three iterations"]["over_best"] < cold["over_best"]
    assert [len(window) for window in warm["vnmse_by_step"]] == [6, 6]
    assert warm["over_best_by_step"][0][0] == pytest.approx(
        cold["over_best_by_step"][0][0], rel=1e-4
    )  # no earlier factor to start from


def test_a_warm_start_needs_steps_in_a_row_and_a_rank_below_that_of_the_matrices(
    recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="^rank=64: no matrix has a higher rank than 64"):
        rows(WarmStart(recorded=recorded, rank=64))
    alone = WarmStart(recorded=f"{recorded}/step-000040.pt")
    with pytest.raises(ConfigError, match="^recorded=.*step-000040.pt: a warm start needs steps"):
        rows(alone)
    windows = alone.windows()
    monkeypatch.setattr(WarmStart, "windows", lambda _: windows)
    with pytest.raises(ConfigError, match="^window=1: a warm start needs steps"):
        rows(WarmStart(window=1))


def test_a_second_scale_always_errs_less(recorded: str) -> None:
    """maxnorm-08 holds at every step, with either norm.

    With the 2-norm nearly all values take the larger scale.
    """
    found = rows(MultiScaleError(recorded=recorded))
    assert len(found) == 6
    for row in found.values():
        assert row["largest_ratio"] < 1 and len(row["step"]) == 2
    assert found["l2, (2, 6) bits"]["ratio"] < 0.3 < found["linf, (2, 6) bits"]["ratio"]
    assert (
        found["linf, (8, 12) bits"]["single_scale_error"]
        < found["linf, (4, 8) bits"]["single_scale_error"]
    )


def test_rotated_levels_err_the_same_for_all_laws_and_gradients(recorded: str) -> None:
    """Evenly spaced levels err more with heavier tails."""
    typed = "eden bits=2; qsgd min_size=0 bits=2 bucket_size=64; top_k error_feedback=false"
    study = ErrorByBits(recorded=recorded, methods=typed, values=16384)
    found = rows(study)
    laws = ["normal", "Laplace", "Student t(3)", "recorded gradients"]
    eden = [found[f"eden bits=2, {law}"] for law in laws]
    assert [row["vnmse"] for row in eden[:3]] == pytest.approx([0.133] * 3, rel=0.05)
    assert 0.1 < eden[3]["vnmse"] < 0.14, (
        "zeros that fill up short tensors take a part of the error"
    )
    assert all(2 < row["bits_per_value"] < 2.2 for row in eden[:3])
    qsgd = [found[f"qsgd min_size=0 bits=2 bucket_size=64, {law}"]["vnmse"] for law in laws]
    assert 0.9 < qsgd[0] < qsgd[1] < qsgd[2]
    figure = draw_error_by_bits({"settings": {}, "rows": list(found.values())})
    assert figure is not None and len(figure.axes) == 4
    assert [line.get_ydata()[0] for line in figure.axes[2].lines][:2] == [eden[2]["vnmse"], qsgd[2]]


def test_edens_scales_err_less_than_turboquants_forms() -> None:
    """modern-01 holds for every vector, modern-02 and modern-03 in the mean."""
    study = Turboquant(dimension=64, vectors=64, draws=2)
    found = {(row["table"], row["row"]): row for row in study.rows()}
    errors = {key: sum(row["vnmse"]) / 2 for key, row in found.items()}
    for law in ("normal", "cubes"):
        assert 0.45 < errors[law, "unbiased_1"] / (0.5 * errors[law, "prod_1"]) < 1
        for bits in (1, 2, 3, 4):
            biased = found[law, f"biased_{bits}"]
            assert biased["worst_of_mse"] <= 1 + 1e-5 and biased["of_mse"] < 0.9995
        for bits in (2, 3, 4):
            one, chain, prod = (errors[law, f"{x}_{bits}"] for x in ("unbiased", "chain", "prod"))
            assert one < chain < prod


def test_a_ring_of_four_takes_a_half_longer_than_a_link() -> None:
    """modern-04: that is most of what others measured above their own model."""
    found = rows(DilocoMeasured(latency_microseconds=1e-9))
    assert len(found) == 16
    for row in found.values():
        naive = row["measured_milliseconds"] / row["naive_ratio"] - row["own_milliseconds"]
        ring = row["predicted_milliseconds"] - row["own_milliseconds"]
        assert ring == pytest.approx(1.5 * naive)
    assert found["50mbit, H = 1"]["naive_ratio"] == pytest.approx(1.915, abs=0.001), "as printed"


def test_rings_err_more_with_fewer_bits_and_with_more_workers(recorded: str) -> None:
    methods = tuple(f"{name} exchange=ring" for name in ("mxfp8", "mxfp6", "mxfp4"))
    found = rows(RingError(recorded=recorded, methods=methods, workers=(2, 4)))
    for method in methods:
        few, many = (found[f"{method}, W={w}"]["vnmse"] for w in (2, 4))
        assert len(few) == 8 and len(many) == 6, "groups of one step and of two, in two windows"
        assert sum(few) / 8 < sum(many) / 6
    for w in (2, 4):
        eight, six, four = (found[f"{method}, W={w}"] for method in methods)
        assert eight["bits"] > six["bits"] > four["bits"]
        assert set(eight["of_first"]) == {1}
        assert 1 < min(six["of_first"]) < max(six["of_first"]) < min(four["of_first"])


@pytest.mark.parametrize("workers", [1, 3, 14])
def test_a_ring_has_the_workers_of_recorded_steps(recorded: str, workers: int) -> None:
    with pytest.raises(ConfigError, match=f"workers={workers}: type multiples of 2, .* up to 12"):
        rows(RingError(recorded=recorded, workers=(workers,)))


def test_codes_are_zero_more_often_with_fewer_levels_and_the_longer_scale(recorded: str) -> None:
    """qsgd-09: a 2-norm is at least the maximum, so more values round to zero.

    Its error is larger, too.
    """
    found = rows(ZeroCodes(recorded=recorded))
    assert len(found) == 6
    for norm in ("linf", "l2"):
        shares = [found[f"{norm}, {bits} bits"]["zero_share"] for bits in (8, 4, 2)]
        assert 0 < shares[0] < shares[1] < shares[2] < 1
    for bits in (2, 4, 8):
        maximum, length = (found[f"{norm}, {bits} bits"] for norm in ("linf", "l2"))
        assert maximum["zero_share"] < length["zero_share"] and maximum["vnmse"] < length["vnmse"]


def test_bits_of_every_layer_are_those_of_its_code(recorded: str) -> None:
    methods = ["qsgd bits=4 min_size=0", "powersgd rank=2 error_feedback=false", "none"]
    found = rows(Layers(recorded=recorded, methods=methods))
    matrix = next(
        layer for layer in found[methods[1]]["layers"] if layer["name"].endswith("weight")
    )
    assert matrix["values"] == 64 * 64 and matrix["bits_a_step"] == 32 * 2 * (64 + 64), "P and Q"
    quantized = next(
        layer for layer in found[methods[0]]["layers"] if layer["name"] == matrix["name"]
    )
    assert quantized["bits_a_step"] == 4 * 4096 + 32 * 8 and 0 < quantized["relative"] < 0.5
    assert all(
        layer["relative"] < 1e-6 and layer["bits_a_step"] == 32 * layer["values"]
        for layer in found["none"]["layers"]
    )


def test_the_first_half_of_a_window_and_the_first_tenth_of_a_residual_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _late([[9.0, 1.0], [9.0, 3.0]]) == 2
    study = EcqStability(steps=20)
    monkeypatch.setattr(EcqStability, "_residual", lambda *_: [9.0] * 2 + [1.0] * 16 + [2.0] * 2)
    assert study._course(256, "l2", 0.1, 1.0).growth == pytest.approx(2)


def test_a_distance_is_in_units_of_the_gradients_magnitude(recorded: str) -> None:
    study = GradientLevels(recorded=recorded)
    codec, moment = next(iter(study._codecs().values())), study.moments()[0]
    small, large = (
        study._quantize(codec, replace(moment, gradients=factor * moment.gradients))
        for factor in (1.0, 8.0)
    )
    assert small["wasserstein"] == pytest.approx(large["wasserstein"], rel=1e-5)
