"""A directory that holds another run is refused, with the keys in which the two differ."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Timer

import pytest
from nightly import slow_but
from sentence import config_of, run

from gcbench.core.errors import ConfigError
from gcbench.runner.launch.lock import Lock
from gcbench.runner.launch.same import find_same_run
from gcbench.runner.settings.config import RunConfig

SHORT = ("trainer.launcher=virtual", "trainer.max_steps=2")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["bits=2", "seed=2"], "(bits=4 -> 2, levels=7 -> 1, seed=1 -> 2)"),
        (["trainer.max_steps=1"], "trainer.max_steps=2 -> 1)"),
        (["trainer.threads=2"], "trainer.threads=1 -> 2)"),
        (["compressor=none", "seed=2"], "(compressor=qsgd -> none, seed=1 -> 2)"),
    ],
)
def test_a_finished_run_is_no_answer_to_another_one(
    tmp_path: Path, overrides: list[str], says: str
) -> None:
    run(tmp_path, *SHORT)
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(ConfigError) as error:
        run(tmp_path, *SHORT, *overrides)
    assert f"{tmp_path} holds a finished run with another configuration (" in str(error.value)
    assert says in str(error.value) and "type another directory=, or rerun=true" in str(error.value)
    assert (tmp_path / "result.json").read_bytes() == before


def test_what_changes_no_number_is_no_difference(tmp_path: Path) -> None:
    first = run(tmp_path, *SHORT)
    beside = [
        *"logger.mode=offline name=other trainer.checkpoint_minutes=5".split(),
        *"trainer.keep_weights=false outputs=x".split(),
    ]
    assert run(tmp_path, *SHORT, *beside) == first


@pytest.mark.parametrize("limit", slow_but(["nan"], ["nan", "inf"]))
def test_a_run_with_a_value_that_json_lacks_is_found_again(tmp_path: Path, limit: str) -> None:
    overrides = ["model._target_=own_models.Limited", f"+model.limit={limit}", *SHORT]
    run(tmp_path, *overrides)
    before = (tmp_path / "result.json").stat()
    run(tmp_path, *overrides)
    assert (tmp_path / "result.json").stat() == before


def test_rerun_puts_the_other_run_aside(tmp_path: Path) -> None:
    run(tmp_path, *SHORT)
    assert run(tmp_path, *SHORT, "bits=2", "rerun=true")["config"]["bits"] == 2
    assert len(list(tmp_path.glob("result*.json"))) == len(list(tmp_path.glob("weights*.pt"))) == 2


def test_a_run_that_was_killed_is_not_continued_as_another_one(tmp_path: Path) -> None:
    """Only its checkpoint and what was written at its start say which run it was."""
    overrides = [
        *"trainer.launcher=virtual trainer.max_steps=6 trainer.checkpoint_steps=4".split(),
        "trainer.keep_weights=false",
    ]
    first = run(tmp_path, *overrides)
    (tmp_path / "result.json").unlink()
    says = r"an unfinished run with another configuration \(optimizer.lr=0.05 -> 0.01\)"
    with pytest.raises(ConfigError, match=says):
        run(tmp_path, *overrides, "optimizer.lr=0.01")
    with pytest.raises(ConfigError, match=r"\(trainer.max_steps=6 -> 9\)"):
        run(tmp_path, *overrides[:1], *overrides[2:], "trainer.max_steps=9")
    assert run(tmp_path, *overrides, "trainer.threads=2")["test"] == first["test"]


def test_a_sweep_takes_no_result_of_another_run(tmp_path: Path) -> None:
    """The names of directories do not matter."""
    config = config_of(*SHORT, f"outputs={tmp_path}")
    there = tmp_path / "other-s1-12345678"
    run(there, *SHORT, "trainer.threads=1")
    asked = config_of(
        *"trainer.batch_size=16 trainer.epochs=1 trainer.threads=1 model.widths=[16]".split(),
        *SHORT,
        f"outputs={tmp_path}",
    )
    assert find_same_run(asked, tmp_path / "mine-s1-12345678") == there
    assert find_same_run(config, tmp_path / "mine-s1-12345678") is None


KILLED = ("trainer.launcher=virtual", "trainer.checkpoint_steps=2", "trainer.keep_weights=true")


def test_checkpoints_behind_a_link_are_neither_used_nor_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, *KILLED, "trainer.max_steps=4")
    (folder / "checkpoints").rename(tmp_path / "scratch")
    (folder / "checkpoints").symlink_to(tmp_path / "scratch")
    result = (folder / "result.json").read_bytes()
    with pytest.raises(ConfigError, match="checkpoints is a link to .*/scratch, whose checkpoints"):
        run(folder, *KILLED, "trainer.max_steps=4", "rerun=true")
    assert (folder / "result.json").read_bytes() == result
    assert any((tmp_path / "scratch").iterdir())


def test_a_requeued_job_reruns_what_it_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*KILLED, "trainer.max_steps=4", "rerun=true"]
    before = run(tmp_path / "run", *asked)
    assert not list(tmp_path.rglob("result.*.json"))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    anew = run(tmp_path / "run", *asked)
    (aside,) = tmp_path.rglob("result.*.json")
    assert json.loads(aside.read_text()) == before
    # This job has begun the rerun, and does not start it again.
    assert run(tmp_path / "run", *asked) == anew
    assert len(list(tmp_path.rglob("result.*.json"))) == 1


def test_half_a_checkpoint_is_none_to_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, *KILLED, "trainer.max_steps=2")
    (tmp_path / "result.json").unlink()
    (step,) = (tmp_path / "checkpoints").iterdir()
    step.rename(step.with_suffix(".partial"))
    with caplog.at_level("INFO", "gcbench"):
        result = run(tmp_path, *KILLED, "trainer.workers=4", "trainer.max_steps=2")
    assert "continuing" not in caplog.text and result["resharded"] == []


def test_a_checkpoint_of_nobody_knows_which_run_is_not_continued(tmp_path: Path) -> None:
    run(tmp_path, *KILLED, "trainer.max_steps=2")
    start = json.loads((tmp_path / "start.json").read_text())
    for name in ("result.json", "start.json"):
        (tmp_path / name).unlink()
    junk = [start | {key: value} for key in ("config", "git", "extended") for value in (3, [3], {})]
    junk.append(start | {"config": start["config"] | {"model": {"_target_": 3}}})
    says = "no whole start.json that says of which run; type resume="
    for damaged in (None, "{", "[]", *map(json.dumps, junk)):
        if damaged is not None:
            (tmp_path / "start.json").write_text(damaged)
        with pytest.raises(ConfigError, match=says):
            run(tmp_path, *KILLED, "trainer.max_steps=4")


def test_lines_that_a_crash_has_lost_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, *KILLED, "trainer.max_steps=4", "trainer.log_every=2")
    run(tmp_path, *KILLED, "trainer.max_steps=6", "trainer.log_every=2")
    assert "lacks lines" not in caplog.text
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text(lines[0])  # with no line break at its end
    run(tmp_path, *KILLED, "trainer.max_steps=8", "trainer.log_every=2")
    assert "metrics.jsonl lacks lines before step 6, as after a power failure" in caplog.text
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()]
    assert steps[-1] == 8


def test_damaged_lines_are_counted_before_they_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, *KILLED, "trainer.max_steps=6", "trainer.log_every=1")
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = "\0" * 50
    lines[2] = lines[2][:-9]
    path.write_text("".join(f"{line}\n" for line in lines) + '{"step": 7, "lo')  # cut short
    run(tmp_path, *KILLED, "trainer.max_steps=8", "trainer.log_every=1")
    assert "metrics.jsonl had 2 damaged lines, which are removed: curves have a gap" in caplog.text


def test_a_finished_run_on_another_link_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["trainer.workers=1", "trainer.max_steps=5"]
    monkeypatch.setenv("GCBENCH_LINK", "1gbit")
    assert run(tmp_path, *overrides) == run(tmp_path, *overrides)
    monkeypatch.setenv("GCBENCH_LINK", "10mbit")
    says = "finished on netlab's link of 1gbit, and .* link of 10mbit; typ"
    with pytest.raises(ConfigError, match=says):
        run(tmp_path, *overrides)
    there = tmp_path / "mine-s1-12345678"
    run(there, *overrides)
    kept = json.loads((there / "start.json").read_text())["config"]
    asked = RunConfig.of({**kept, "outputs": str(tmp_path)})
    assert find_same_run(asked, tmp_path / "other-s1-12345678") == there
    monkeypatch.setenv("GCBENCH_LINK", "1gbit")
    assert find_same_run(asked, tmp_path / "other-s1-12345678") is None


def test_a_run_that_ends_while_the_same_command_waits_is_not_made_twice(tmp_path: Path) -> None:
    overrides = ["compressor=none", "model=linear", "trainer.workers=1", "trainer.max_steps=2"]
    done = run(tmp_path, *overrides)
    result, hidden = tmp_path / "result.json", tmp_path / "hidden.json"
    result.rename(hidden)
    lock = Lock(tmp_path / "run.lock")
    assert lock.take()

    def end() -> None:
        hidden.rename(result)
        lock.release()

    Timer(0.5, end).start()
    assert run(tmp_path, *overrides) == done
