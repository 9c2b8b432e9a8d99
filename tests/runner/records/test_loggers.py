"""W&B, TensorBoard and metrics.csv with the real libraries, and failures of W&B."""

from __future__ import annotations

import csv
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import wandb
from needed import patience
from results import plain_result
from sentence import config_of, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from wandb.sdk import wandb_setup

from gcbench.core.errors import ConfigError
from gcbench.runner.records import wandb_logger
from gcbench.runner.records.files import RunFiles, WriteError
from gcbench.runner.records.loggers import Logger, TensorBoardLogger, start_logger
from gcbench.runner.records.result import Begun
from gcbench.runner.records.schema import BITS_PER_MIB
from gcbench.runner.records.wandb_service import SETTINGS, asked_mode, settled_mode

RESULT = plain_result(test={"accuracy": 90.0, "loss": None})
# A run of a few steps that logs every kind of event.
SHORT = ("trainer.max_steps=4", "trainer.log_every=2", "trainer.error_every=2")


@pytest.fixture(autouse=True)
def no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def start(mode: str, directory: Path) -> Logger:
    return start_logger(config_of(f"logger.mode={mode}"), RunFiles(directory), Begun.here())


def use(logger: Logger) -> None:
    for step in (1, 2):
        logger.log({"event": "train", "step": step, "epoch": step / 2, "loss": math.nan})
    logger.finish(RESULT)


def test_auto_without_a_key_writes_offline_files_quietly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    use(start("auto", tmp_path))
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert capfd.readouterr() == ("", "")


def test_event_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with pytest.raises(WriteError, match="cannot write .*/tensorboard .*type another outputs="):
        TensorBoardLogger(tmp_path / "tensorboard", 0, {}, [])


def test_a_run_that_is_killed_after_its_result_has_its_last_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RecordWriter.write

    def write_slowly(self: Any, data: bytes) -> None:
        time.sleep(0.2)
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", write_slowly)
    monkeypatch.setattr(TensorBoardLogger, "finish", lambda *_: os._exit(9))
    overrides = (tmp_path, "logger=tensorboard", *SHORT, "trainer.launcher=virtual")
    killed = multiprocessing.get_context("fork").Process(target=run, args=overrides)
    killed.start()
    killed.join()
    result = RunFiles(tmp_path).read_result()
    assert killed.exitcode == 9 and result is not None and result.status == "done"
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("test/accuracy")] == [4]


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


@pytest.mark.parametrize("place", ["init", "define_metric", "log", "summary", "finish"])
def test_trouble_is_told_once_and_ends_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    class Run:
        id, url, offline = "a1", None, True
        summary: dict[str, Any] = {}

        def define_metric(self, name: str, **_: Any) -> None:
            fail_at("define_metric")

        def log(self, metrics: dict[str, Any], step: int, commit: bool) -> None:
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
    wandb.teardown()  # stop the service of an earlier test
    monkeypatch.setattr(process, "get_core_path", lambda: str(core))
    monkeypatch.setitem(SETTINGS, "x_service_wait", 0.5)
    use(start("offline", tmp_path))
    messages = [
        record.getMessage() for record in caplog.records if record.name.startswith("gcbench")
    ]
    assert len(messages) == 1 and "the run goes on without it" in messages[0]


@pytest.mark.parametrize("place", ["log", "finish"])
def test_a_service_that_stops_is_left(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What W&B waits for has no end then, and neither has the end of Python."""
    wandb.teardown()
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    logger = start("offline", tmp_path / "first")
    connection: Any = wandb_setup.singleton()._connection
    os.kill(connection._proc._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(wandb_logger, "PATIENCE_SECONDS", 0.5)
    vars(logger)["_finish_seconds"] = 0.5
    began = time.monotonic()
    if place == "log":  # more than fits between the two
        logger.log({"event": "train", "step": 1, "epoch": 1.0, "loss": "x" * 5_000_000})
    use(logger)
    wandb.teardown()
    assert time.monotonic() - began < patience(10)
    messages = [one.getMessage() for one in caplog.records if one.name == "gcbench"]
    assert len(messages) == 1 and "has not answered for 0 s" in messages[0]
    monkeypatch.undo()
    use(start("offline", tmp_path / "second"))  # as the next row of a sweep
    assert list((tmp_path / "second").glob("wandb/offline-run-*/*.wandb"))


def test_a_key_decides_what_auto_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = wandb.Settings()

    def mode(typed: str) -> str:
        return settled_mode(asked_mode(typed), own)

    assert mode("auto") == mode("online") == "offline"
    netrc = tmp_path / "netrc"
    netrc.touch(mode=0o600)
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    assert mode("auto") == mode("online") == "online"
    own.base_url = "https://wandb.example.org"
    assert mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert mode("auto") == "online" and mode("offline") == "offline"
    for name, value, means in (
        ("WANDB_MODE", "offline", "offline"),
        ("WANDB_MODE", "dryrun", "offline"),
        ("WANDB_MODE", "disabled", "disabled"),
        ("WANDB_MODE", "", "online"),
        ("WANDB_DISABLED", "true", "disabled"),
        ("WANDB_DISABLED", "false", "online"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            assert mode("auto") == means, (name, value)
            assert mode("online") == "online" and mode("offline") == "offline"
    own.mode = "offline"  # in ~/.config/wandb
    assert mode("auto") == "offline"
    own.mode = "online"
    for written in ("offline", "disabled"):  # by `wandb offline`, in the working directory
        (tmp_path / "wandb").mkdir(exist_ok=True)
        (tmp_path / "wandb" / "settings").write_text(f"[default]\nmode = {written}\n")
        assert mode("auto") == written and mode("online") == "online"
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = online\n")
    monkeypatch.delenv("WANDB_API_KEY")
    assert mode("auto") == "offline", "a file of the working directory cannot send more"


def test_online_without_a_key_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()
    use(start("online", tmp_path))
    assert "wandb login" in caplog.text and list(tmp_path.glob("wandb/offline-run-*"))


class Refusing(BaseHTTPRequestHandler):
    """A host that accepts connections, and no request, as one does that does not know the key."""

    def do_POST(self) -> None:
        self.send_error(401)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_key_without_a_host_logs_offline_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on the nodes of a cluster: what is not sent can be uploaded later, by the same id."""
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        for name, says in (("refuses", "logging offline"), ("gone", "cannot be reached")):
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
            wandb.teardown()
            began = time.monotonic()
            logger = start("auto", tmp_path / name)
            assert time.monotonic() - began < patience(20)
            use(logger)
            assert says in caplog.text and "goes on without it" not in caplog.text
            assert logger.logged is not None and logger.logged.path is not None
            assert list((tmp_path / name).glob(f"{logger.logged.path}/*.wandb"))
            caplog.clear()
            if name == "refuses":
                server.shutdown()
                server.server_close()


def read_table(directory: Path) -> list[dict[str, str]]:
    with (directory / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_for_every_step_with_a_line_and_a_column_for_every_metric(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, "logger=csv", "trainer.workers=1", *SHORT)
    assert result["logged"] == {
        "logger": "csv",
        "id": None,
        "url": None,
        "path": "metrics.csv",
    }
    rows, lines = read_table(tmp_path), RunFiles(tmp_path).read_metrics()
    assert [int(row["step"]) for row in rows] == sorted({line["step"] for line in lines})
    at = {int(row["step"]): row for row in rows}
    spent = {"bits_sent_per_worker": "bits/sent", "seconds": "time/elapsed", "epoch": "epoch"}
    spent["bits_received_per_worker"] = "bits/received"
    for line in lines:
        for key, value in line.items():
            if value is not None and key not in ("event", "step"):
                column = spent.get(key, f"{line['event']}/{key}")
                assert float(at[line["step"]][column]) == value, column


def test_a_continued_run_has_each_step_once_in_metrics_csv(tmp_path: Path) -> None:
    logger = start_logger(config_of("logger=csv"), RunFiles(tmp_path), Begun.here())
    kept = {"event": "train", "step": 1, "epoch": 0.5, "loss": 2.0}
    for line in (kept, {**kept, "step": 2}, {**kept, "step": 3}):  # no finish(), as if killed
        logger.log(line)
    RunFiles(tmp_path).append_metrics(kept)  # all that its checkpoint has
    logger = start_logger(config_of("logger=csv"), RunFiles(tmp_path), Begun.here())
    assert [row["step"] for row in read_table(tmp_path)] == ["1"]
    logger.log({**kept, "step": 2, "loss": 1.0})
    logger.log({"event": "test", "step": 2, "epoch": 1.0, "accuracy": 50.0})
    logger.finish(RESULT)
    facts = [(row["step"], row["train/loss"], row["test/accuracy"]) for row in read_table(tmp_path)]
    assert facts == [("1", "2.0", ""), ("2", "1.0", "50.0")]


def test_tensorboard_has_the_scalars_and_knobs_and_goes_on_after_the_last_line(
    tmp_path: Path,
) -> None:
    overrides = ("logger=tensorboard", "trainer.workers=1", "bits=3", *SHORT)
    result = run(tmp_path, *overrides)
    events = EventAccumulator(str(tmp_path / result["logged"]["path"])).Reload()
    assert events.Scalars("bits/ratio")[0].value == pytest.approx(result["bits_sent"]["ratio"])
    assert events.Scalars("test/accuracy")[-1].value == pytest.approx(result["test"]["accuracy"])
    mib = round(result["bits_sent"]["per_worker"] / BITS_PER_MIB)
    over = [(event.step, event.value) for event in events.Scalars("test_over_mib/accuracy")]
    assert over == [(mib, pytest.approx(result["test"]["accuracy"]))]
    text = str(events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    assert "optimizer" in text and "bits" in text
    # As if killed after its last checkpoint, at step 2: events after that step are purged.
    files = RunFiles(tmp_path)
    files.truncate_metrics(2, tested=2)
    again = start_logger(config_of(*overrides), files, Begun.here())
    again.log({"event": "train", "step": 4, "epoch": 0.1, "loss": 7.0})
    again.finish(plain_result(status="interrupted", reason="stopped"))
    events = EventAccumulator(str(tmp_path / result["logged"]["path"])).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")][1:] == [(4, 7.0)]


def test_a_purge_by_steps_leaves_scores_over_mib(tmp_path: Path) -> None:
    """TensorBoard compares the last step with these MiB, and would lose all that are more."""
    test = {"event": "test", "epoch": 1.0, "accuracy": 50.0}
    lines = [{**test, "step": n, "bits_sent_per_worker": 900 * n * BITS_PER_MIB} for n in (1, 2)]
    TensorBoardLogger(tmp_path, 0, {}, []).log(lines[0])
    TensorBoardLogger(tmp_path, 2, {}, lines[:1]).log(lines[1])
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("test_over_mib/accuracy")
    assert [event.step for event in events] == [900, 1800]


def test_a_logger_without_its_package_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcbench.runner.launch.checks.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="logger=tensorboard.*pip install tensorboard"):
        run(tmp_path / "run", "logger=tensorboard")


def test_none_leaves_the_files_of_every_run_only(tmp_path: Path) -> None:
    result = run(tmp_path, "logger=none", "trainer.workers=1", *SHORT)
    assert result["logged"] is None
    names = {path.name for path in tmp_path.iterdir()}
    assert {"result.json", "metrics.jsonl"} <= names
    assert not names & {"wandb", "tensorboard", "metrics.csv"}
