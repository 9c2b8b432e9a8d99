"""The command `gcbench papers studies`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gcbench.core.errors import ConfigError
from gcbench.papers.studies import study as study_module
from gcbench.papers.studies.study import class_of, studies, study_names
from gcbench.papers.tables.measured import find_study

PAPERS = Path(study_module.__file__).parents[1]


def typed(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> None:
    monkeypatch.chdir(folder)
    studies(arguments)


def test_rows_are_shown_and_written_with_what_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "quantizer_bounds",
        "values=[64]",
        "levels=[1,4]",
        "vectors=[normal]",
        "seeds=2",
        "outputs=there",
    ]
    typed(monkeypatch, tmp_path, *arguments)
    shown = capsys.readouterr().out
    assert "normal, n=64, s=1" in shown and "there/studies/quantizer_bounds.json" in shown
    path, study = find_study("quantizer_bounds", [tmp_path / "there"]) or pytest.fail(
        "the report does not find it"
    )
    assert path.parent.name == "studies"
    assert study["settings"] == {
        "values": [64],
        "levels": [1, 4],
        "vectors": ["normal"],
        "seeds": 2,
    }
    assert [row["row"] for row in study["rows"]] == ["normal, n=64, s=1", "normal, n=64, s=4"]
    assert study["environment"]["versions"]["torch"] and study["started"] <= study["finished"]
    assert len(path.read_text().splitlines()) < 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bounds"], "bounds: there is no such study; type one of communication_times"),
        (["study"], "study: there is no such study"),
        (
            ["ecq_stability", "steps=0"],
            "steps=0: type a whole number of at least 1, as in steps=1500",
        ),
        (
            ["ecq_stability", "steps=1.5"],
            "steps=1.5: type a whole number of at least 1, as in steps=1500",
        ),
        (["ecq_stability", "norms=[l3]"], "norms=[l3]: type norms=l2"),
        (
            ["ecq_stability", "sizes=256,x"],
            "sizes=256,x: type a whole number of at least 1, as in sizes=256,1024,4096",
        ),
        (
            ["quantizer_bounds", "levels=[200]", "seeds=1", "values=[256]", "vectors=[flat]"],
            "quantizer_bounds: levels=200: type a whole number from 1 to 127, as in levels=7",
        ),
        (["quantizer_bounds", "seed=3"], "seed=3: no such key; type seeds="),
        (
            ["quantizer_bounds", "seeds"],
            "quantizer_bounds seeds: type list, or a study's name and key=value",
        ),
        ([], "type list, or a study's name"),
        (["list", "seeds=3"], "list seeds=3: type gcbench papers studies list"),
        (["gradient_levels", "recorded=nowhere"], "recorded=nowhere: no step-*.pt there"),
        (
            ["gradient_levels", "recorded=here", "steps=440"],
            "steps=440 has no effect with recorded=here; type only one of them",
        ),
        (
            ["ecq_stability", "steps=1"],
            "steps=1: type a whole number of at least 2, as in steps=1500",
        ),
        (["zero_codes", "bits=[2,1]"], "bits=[2,1]: type numbers of bits from 2 to 8"),
        (["zero_codes", "bits=[9]"], "bits=[9]: type numbers of bits from 2 to 8"),
        (["layers", "methods=[]"], "methods=[]: type methods as after compressor="),
        (
            ["layers", "methods=[top_k,global_randk]"],
            "methods=[global_randk]: it compresses all tensors together",
        ),
        (["warm_start", "rank=64"], "rank=64: no matrix has a higher rank than 64"),
        (["decode_scaling", "workers=[1,2]"], "workers=[1,2]: one worker receives nothing"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        typed(monkeypatch, tmp_path, *arguments)
    assert says in str(raised.value) and "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_every_study_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, tmp_path, "list")
    shown = capsys.readouterr().out
    methods = sum(
        path.read_text().count("def rows(self) -> Iterator") for path in PAPERS.glob("*/*.py")
    )
    assert len(study_names()) == methods - 1 >= 8  # that of the base class measures nothing
    assert all(f"\n {name} " in shown for name in study_names())


@pytest.mark.parametrize("name", study_names())
def test_settings_that_are_kept_can_be_made_and_written(name: str) -> None:
    assert json.dumps(class_of(name)().settings())
