"""Processes that torchrun or srun started with different overrides, or on different machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gloo_pool import pool
from launch_cases import compare, compare_code, gcbench_with_own_modules
from needed import patience
from nightly import each
from processes import gcbench, under_torchrun
from sentence import compose, config_of

from gcbench.runner.config.naming import run_directory


@each(
    ("override", "key"),
    [
        ("trainer.batch_size=8", "trainer.batch_size is 32 in process 0 and 8 in process 1"),
        ("norm=l2", "norm is linf in process 0 and l2 in process 1"),
        ("error_feedback=true", "error_feedback is False in process 0 and True in process 1"),
        ("clip_norm=0.5", "clip_norm is None in process 0 and 0.5 in process 1"),
        ("trainer.overlap=true", "trainer.overlap is False in process 0 and True in process 1"),
        ("trainer.timeout_seconds=9", "trainer.timeout_seconds is 600.0 in process 0 and 9.0 in"),
        ("outputs=elsewhere", "outputs is outputs in process 0 and elsewhere in process 1"),
    ],
)
def test_a_key_that_differs_is_named_to_all(override: str, key: str) -> None:
    errors = errors_of([], [override])
    assert errors[0] == errors[1] and errors[0].startswith(
        "the processes were given different configurations: "
    )
    assert key in errors[0]


@each("override", ["trainer.threads=1", "trainer.launcher=torchrun", "logger.mode=disabled"])
def test_what_may_differ_is_not(override: str) -> None:
    assert errors_of(["directory=run"], ["directory=run", override]) == [None, None]


def test_what_would_give_each_a_directory_of_its_own_is_named() -> None:
    """Checkpoints are written into one directory by all."""
    for error in errors_of([], ["trainer.threads=1"]):
        assert error and "trainer.threads is None in process 0 and 1 in process 1" in error
        assert "the run's directory is mlp-digits" in error and "or one directory=DIR" in error


def test_a_value_that_is_no_number_is_equal_to_itself() -> None:
    typed = ["model._target_=torch.nn.Linear", "+model.how=nan", "+model.more=[1,nan]"]
    assert errors_of(typed, typed) == [None, None]
    for error in errors_of(typed, [*typed, "+model.other=nan"]):
        assert error and "model.other is (absent) in process 0 and nan in process 1" in error
        assert "model.how" not in error


def errors_of(*typed: list[str]) -> list[str | None]:
    """Return what each process says when they were started with these overrides."""
    started = [(config_of(*each), run_directory(compose(*each))) for each in typed]
    return pool(len(typed)).run(compare, started)


@pytest.mark.slow
def test_a_run_of_different_code_ends_before_it_trains(tmp_path: Path) -> None:
    for rank in "01":
        (tmp_path / rank).mkdir()
        (tmp_path / rank / "net_of_this_test.py").write_text(
            "import torch\n"
            "class Net(torch.nn.Sequential):\n"
            "    def __init__(self):\n"
            f"        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10)) # {rank}\n"
        )
    overrides = ("logger=none", "model._target_=net_of_this_test.Net", f"directory={tmp_path}/run")
    ended = under_torchrun(
        gcbench_with_own_modules, overrides, overrides, folder=tmp_path, timeout=patience(100)
    )
    assert [done.returncode for done in ended] == [1, 1]
    for done in ended:
        assert "run different code: the source of net_of_this_test is" in done.stderr, done.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_code_that_differs_is_named_to_all(tmp_path: Path) -> None:
    config = config_of("model._target_=ours_of_this_test.Net")
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        (folder / "gcbench" / "core" / "codecs").mkdir(parents=True)
        (folder / "gcbench" / "core" / "codecs" / "sums.cpp").write_text("// sums")
        (folder / "ours_of_this_test.py").write_text("import helper_of_this_test\nNet = list")
        (folder / "helper_of_this_test.py").write_text("RATE = 1")
    places = [str(folder) for folder in folders]

    def errors(*versions: str) -> list[str | None]:
        return pool(2).run(compare_code, config, [*versions], places)

    assert errors("2.14", "2.14") == [None, None]
    for error in errors("2.14", "2.13"):
        assert error == (
            "the processes run different code: torch is 2.14 in process 0 and 2.13 in process 1; "
            "install the same on each"
        )
    (folders[1] / "helper_of_this_test.py").write_text("RATE = 2")
    for error in errors("2.14", "2.14"):
        assert error and re.search(
            r"code: the source of helper_of_this_test is \w{8} in process 0 and \w{8} in", error
        )
    (folders[1] / "gcbench" / "core" / "codecs" / "sums.cpp").write_text("// other sums")
    for error in errors("2.14", "2.13"):
        assert error and "the source of gcbench/core/codecs/sums.cpp is" in error


def test_a_run_of_different_overrides_ends_before_it_trains(tmp_path: Path) -> None:
    overrides = ("logger.mode=disabled", "trainer.threads=1", "trainer.max_steps=9")
    first, second = ((*overrides, f"trainer.batch_size={size}") for size in (8, 9))
    ended = under_torchrun(gcbench, first, second, folder=tmp_path, timeout=patience(100))
    assert [done.returncode for done in ended] == [1, 1]
    errors = [done.stderr for done in ended]
    assert all(
        "trainer.batch_size is 8 in process 0 and 9 in process 1; type the same overrides" in text
        for text in errors
    ), errors
    assert not list(tmp_path.rglob("metrics.jsonl"))
