"""A run is a file: config.yaml has what was typed, and --config and `gcbench again` read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gcbench.core.errors import ConfigError
from gcbench.runner.config.compose import compose_overrides, resolve_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.config.typed import add_run_file, read_run_file, write_run_file

Typed = Callable[..., tuple[int, str, str]]
QUICK = ("trainer.workers=1", "trainer.max_steps=2", "trainer.eval_every=null", "logger=none")


def test_what_was_typed_survives_its_file(tmp_path: Path) -> None:
    cases: list[list[str]] = [
        [],
        ["compressor=powersgd", "rank=2", "optimizer=adam", "optimizer.lr=1e-3"],
        ["model._target_=torch.nn.Linear", "model.bias=true", "budget=smoke"],
        ["optimizer.groups=[{match:'.*bias$',lr:0.5}]", "name='2024'", "trainer.max_steps=null"],
        ["+experiment/powersgd/table4=rank_2", "budget=cpu", "outputs='my results'"],
        ["trainer.gpus=4", "schedule=steps", "schedule.milestones=[0.5,0.75]"],
    ]
    for typed in cases:
        path = tmp_path / "config.yaml"
        config = resolve(compose_overrides(typed))
        path.write_text(write_run_file(config.typed))
        again, _ = resolve_overrides(read_run_file(str(path)))
        assert again == config.model_copy(update={"typed": again.typed}), typed
        assert "typed" not in again.as_dict()
        assert sorted(yaml.safe_load(path.read_text()) or {}) == sorted(
            yaml.safe_load(write_run_file(again.typed)) or {}
        )


def test_a_file_continues_a_run_that_began_anew() -> None:
    typed = ["rerun=true", "resume=never", "resume.mode=never", "resume.workers=merge", "bits=4"]
    command, _, *content = write_run_file(typed).splitlines()
    assert content == ["resume.workers: merge", "bits: 4"] and "rerun=true" in command


def test_the_folder_of_a_users_own_files_is_in_the_file(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "compressor").mkdir(parents=True)
    (own / "compressor" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [qsgd, _self_]\nbits: 2\n"
    )
    config = resolve(compose_overrides(["compressor=mine"], str(own)))
    path = tmp_path / "config.yaml"
    path.write_text(write_run_file(config.typed))
    assert resolve_overrides(read_run_file(str(path)))[0].method.as_dict()["bits"] == 2


def test_groups_may_be_nested_and_numbers_are_read_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("compressor: qsgd\noptimizer.lr: 1e-3\ntrainer: {workers: 4, epochs: 1}\n")
    typed = ["compressor=qsgd", "optimizer.lr=0.001", "trainer.workers=4", "trainer.epochs=1"]
    assert read_run_file(str(path)) == typed


def test_what_is_typed_replaces_what_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "compressor: qsgd\nbits: 4\nseed: 2\noptimizer: adam\noptimizer.lr: 0.1\n"
        "experiment: powersgd/table4/rank_2\n"
    )
    base = ["compressor=qsgd", "bits=4", "seed=2", "optimizer=adam", "optimizer.lr=0.1"]
    row = "+experiment=powersgd/table4/rank_2"
    for typed, left, lost in (
        ([], [*base, row], []),
        (["seed=3"], [*base[:2], *base[3:], row, "seed=3"], []),
        (["compressor=qsgd", "bits=2"], [*base[2:], row, "compressor=qsgd", "bits=2"], []),
        (["compressor=sign"], [*base[2:], row, "compressor=sign"], ["bits=4"]),
        (["optimizer=sgd"], [*base[:3], row, "optimizer=sgd"], ["optimizer.lr=0.1"]),
        (
            ["+experiment/powersgd/table4=rank_1"],
            [*base, "+experiment/powersgd/table4=rank_1"],
            [row],
        ),
    ):
        assert add_run_file(str(path), typed) == (left, lost)


def test_a_file_that_is_none_of_a_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, word in (("- bits\n", "type keys"), ("a: [\n", "valid YAML"), ("a: 1\na: 2\n", "a")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=word):
            read_run_file(str(path))


def test_a_run_is_continued_where_it_is_from_another_folder(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "+experiment/ecqsgd/figure2=syn256_qsgd"  # which needs no files
    for place in ([], ["outputs=results"], ["directory=mine"], [row, "budget=smoke"]):
        (here := tmp_path / f"{len(place)}{''.join(place)[-4:]}").mkdir()
        monkeypatch.chdir(here)
        assert typed(*QUICK, *place)[0] == 0
        (result,) = here.rglob("result.json")
        (elsewhere := tmp_path / f"from-{here.name}").mkdir()
        monkeypatch.chdir(elsewhere)
        status, _, told = typed("again", str(result.parent))
        assert status == 0 and "was finished" in told and not [*elsewhere.iterdir()], told
        shown = typed("again", str(result.parent), "outputs=new", "--cfg", "job")[1]
        assert yaml.safe_load(shown)["outputs"] == "new"


def test_a_run_is_typed_again_by_its_hash(typed: Typed, tmp_path: Path) -> None:
    status, _, told = typed(*QUICK, "compressor=qsgd", "bits=4")
    assert status == 0, told
    (folder,) = (tmp_path / "outputs").iterdir()
    own = folder.name[-8:]
    command = " ".join(["gcbench", *QUICK, "compressor=qsgd", "bits=4"])
    assert (folder / "config.yaml").read_text().startswith(f"# {command}\n")
    assert "was finished" in typed("again", own)[2]
    status, shown, told = typed("again", own[:5], "compressor=powersgd", "--cfg", "job")
    assert status == 0 and yaml.safe_load(shown)["trainer"]["max_steps"] == 2
    assert (
        f"left out of outputs/{folder.name}/config.yaml, as its choice is another: bits=4" in told
    )
    status, shown, _ = typed("--config", f"outputs/{folder.name}/config.yaml", "seed=2", "-m")
    assert status == 0 and len([*(tmp_path / "outputs").glob("mlp*")]) == 2
    (folder / "config.yaml").write_text("seed: 3\n")
    assert "another run today (seed=1 -> 3" in typed("again", own, "--cfg", "job")[2]
    shown = typed("again", own, "results=outputs", "seed=3", "--cfg", "job")[1]
    assert yaml.safe_load(shown)["seed"] == 3
    assert "in elsewhere; see" in typed("again", own, "results=elsewhere")[2]
    (folder / "config.yaml").unlink()
    assert "has no config.yaml" in typed("again", str(folder))[2]
