"""Offline logging with the real wandb, and its troubles."""

from __future__ import annotations

import logging
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import wandb
from results import plain_result
from sentence import run

from gcbench.records import Logger, start_logger
from gcbench.records.loggers import SETTINGS, _choose_mode

RESULT = plain_result(test={"accuracy": 90.0, "loss": None})


@pytest.fixture(autouse=True)
def no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def start(mode: str, directory: Path) -> Logger:
    settings = {"mode": mode, "project": "gcbench", "entity": None}
    return start_logger(
        settings,
        name="run",
        group="group",
        tags=["model=mlp"],
        config={"a": {"b": 1}},
        directory=directory,
    )


def use(logger: Logger) -> None:
    for step in (1, 2):
        logger.log({"event": "train", "step": step, "loss": math.nan}, step)
    logger.finish(RESULT)


def test_auto_without_a_key_writes_offline_files_quietly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    use(start("auto", tmp_path))
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert capfd.readouterr() == ("", "")


def test_every_line_of_a_run_arrives_under_the_name_of_its_event(tmp_path: Path) -> None:
    words = ("trainer.launcher=virtual", "trainer.max_steps=4", "trainer.log_every=2")
    run(tmp_path, *words, "trainer.error_every=2", "logger.mode=offline")
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wandb.teardown()  # waits for the service, which writes the end of the file after the run
    content = file.read_bytes()
    for name in ("train/loss", "train/lr", "test/loss", "test/accuracy", "compression/relative"):
        assert name.encode() in content, name


def test_disabled_needs_no_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    use(start("disabled", tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_wandb_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    use(start("offline", tmp_path))
    assert len(caplog.records) == 1 and "the run goes on without it" in caplog.text


@pytest.mark.parametrize("place", ["init", "log", "summary", "finish"])
def test_trouble_is_told_once_and_ends_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    class Run:
        summary: dict[str, Any] = {}

        def log(self, metrics: dict[str, Any], step: int) -> None:
            fail_at("log")

        def finish(self, exit_code: int) -> None:
            fail_at("finish")

    def fail_at(here: str) -> None:
        if here == place:
            raise RuntimeError(f"no {here}\nand much more about it")

    def init(**_: Any) -> Run:
        fail_at("init")
        return Run()

    if place == "summary":
        monkeypatch.setattr(Run, "summary", None)
    monkeypatch.setattr(wandb, "init", init)
    use(start("offline", tmp_path))
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
    assert "much more" not in caplog.text


def test_a_service_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = import_module("wandb.sdk.lib.service.service_process")
    core = tmp_path / "core"
    core.write_text("#!/bin/sh\nexec sleep 3\n")
    core.chmod(0o755)
    wandb.teardown()  # the service of an earlier test
    monkeypatch.setattr(process, "get_core_path", lambda: str(core))
    monkeypatch.setitem(SETTINGS, "x_service_wait", 0.5)
    use(start("offline", tmp_path))
    messages = [
        record.getMessage() for record in caplog.records if record.name.startswith("gcbench")
    ]
    assert len(messages) == 1 and "the run goes on without it" in messages[0]


def test_an_unknown_mode_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="logger.mode=on .* type .* auto, online, offline, disabled"
    ):
        start("on", tmp_path)


def test_a_key_decides_what_auto_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert _choose_mode("auto") == "offline" and not caplog.records
    assert _choose_mode("online") == "offline" and "wandb login" in caplog.text
    netrc = tmp_path / "netrc"
    netrc.touch(mode=0o600)
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    assert _choose_mode("auto") == _choose_mode("online") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert _choose_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert _choose_mode("auto") == "online"
    assert _choose_mode("offline") == "offline"
