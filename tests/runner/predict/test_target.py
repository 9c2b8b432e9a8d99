"""`gcbench predict pays target=...`: epochs of kept curves times predicted epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from results import CONFIG, plain_result

from gcbench.core.errors import ConfigError
from gcbench.runner.predict.arguments import read_predict
from gcbench.runner.predict.command import predict_steps
from gcbench.runner.predict.scenario import build_scenario, predictions
from gcbench.runner.records.store import RecordedRun, write_kept

SCENARIO = "model=mlp batch_size=16 seconds=0.01 device=cpu network=100mbit workers=4".split()
DENSE = [(60, 70, 76), (60, 70, 77)]  # accuracy after each epoch, by seed
TO_75 = (2 + 5 / 6 + 2 + 5 / 7) / 2
LONG = [(50, 60, 70, 80, 85, 91), (50, 60, 70, 80, 85, 91)]  # with a schedule of its own


def runs_of(
    compressor: str,
    curves: Sequence[Sequence[float]],
    model: str = "mlp",
    score: str = "accuracy",
    parameters: int = 5_000,
    **config: object,
) -> list[RecordedRun]:
    runs = []
    for seed, scores in enumerate(curves, start=1):
        result = plain_result(
            identity=f"{model}{compressor}{sorted(config.items())}{len(curves[0])}",
            choices={
                "model": model,
                "dataset": "digits" if model == "mlp" else "wikitext2",
                "compressor": compressor,
                "budget": "paper",
            },
            config={**CONFIG, "seed": seed, "estimator": {}, **config},
            parameters=parameters,
            epochs=float(len(scores)),
            test={score: scores[-1]},
        )
        lines = [{"event": "test", "epoch": e, score: s} for e, s in enumerate(scores, start=1)]
        runs.append(RecordedRun(result, f"{compressor}{seed}", lambda lines=lines: lines))
    return runs


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [
        *runs_of("none", DENSE),
        *runs_of("none", LONG),
        *runs_of("qsgd", DENSE, bits=4),
        *runs_of("qsgd", [(50, 60, 80), (50, 60, 80)], bits=2),
        *runs_of("none", [(50, 60, 78), (50, 60, 78)], estimator={"every": 8}),
        *runs_of("signum", [(50, 60, 70), (50, 60, 76)]),
        *runs_of("none", [(40, 30, 20)], "gpt_tiny", "perplexity", 900_000),
    ]
    Path("outputs").mkdir()
    write_kept(Path("outputs/kept.jsonl.xz"), runs)


def test_the_first_is_by_kept_epochs_times_predicted_epochs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = [*SCENARIO, "compressor=none,qsgd,signum,top_k", "min_size=0", "every=1,8"]
    predict_steps(["pays", "target=75", *typed, "format=csv"])
    rows = {line.split(",")[0]: line for line in capsys.readouterr().out.splitlines()}
    arguments = read_predict(typed)
    scenario = build_scenario(arguments)
    seconds = {p.method: p.epoch_seconds(1437) for _, p in predictions(arguments, scenario)}
    dense = TO_75 * seconds["none"]
    for name, epochs in {"none": TO_75, "none every=8": 2 + 15 / 18}.items():
        taken = epochs * seconds[name]
        text = f"{taken:.3g} s" if taken >= 1 else f"{1e3 * taken:.3g} ms"
        assert f'"{text}, {dense / taken:.2f} x"' in rows[name], name
        assert f",{epochs:.2f},2," in rows[name]
    assert rows.keys().isdisjoint({"signum", "top_k"})  # never in a seed; no curve


def test_what_the_answer_rests_on_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["pays", "target=75", *SCENARIO, "compressor=none,qsgd,signum,top_k", "bits=2,4"]
    predict_steps(typed)
    words = " ".join(capsys.readouterr().out.split())
    assert "those of mlp on digits (own: 1 workers x 8)" in words
    assert "of the kept lengths (3, 6 epochs) each method has the one that is there first" in words
    assert "Never there in every seed: signum." in words
    assert "Without kept curves: top_k." in words
    assert f"qsgd bits=4 {TO_75:.2f} 2" in words and "qsgd bits=2 2.75 2" in words
    predict_steps([*typed, "min_size=0"])  # no kept run of QSGD has it
    assert "Without kept curves: qsgd, top_k." in " ".join(capsys.readouterr().out.split())


def test_a_text_model_has_no_curves_of_images_and_an_absent_target_is_refused() -> None:
    small = ["batch_size=16", "seconds=0.01", "device=cpu", "compressor=none", "workers=4"]
    with pytest.raises(
        ConfigError, match="target=15: .* of gpt_tiny on wikitext2, .* end at 20.0;"
    ):
        predict_steps(["pays", "target=15", "model=lstm_small", *small])
    with pytest.raises(ConfigError, match="target=85: .* of mlp on digits, .* end at 76.5, 91.0;"):
        predict_steps(["pays", "target=85", *SCENARIO])  # a long run passes it on its way
