"""What W&B records of a run, in the offline file that `wandb sync` uploads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import wandb
from needed import patience
from omegaconf import OmegaConf
from results import plain_result
from sentence import config_of, run
from wandb_file import WandbRun, read_offline

from gcbench.papers import dashboards
from gcbench.papers.tables.report import report
from gcbench.runner.command.search import swept_keys
from gcbench.runner.identity import SWEPT
from gcbench.runner.records import wandb_logger
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.loggers import start_logger
from gcbench.runner.records.result import Begun
from gcbench.runner.records.summary import where_logged
from gcbench.runner.records.wandb_logger import WandbLogger
from gcbench.runner.records.wandb_service import own_settings
from gcbench.runner.report.wandb_runs import load_wandb

OVERRIDES = (
    *("bits=3", "min_size=0", "optimizer.lr=0.02", "name=tiny", "logger.mode=offline"),
    "trainer.target=0",
    *("trainer.workers=1", "trainer.max_steps=10", "trainer.log_every=2", "trainer.error_every=3"),
)


class Logged(NamedTuple):
    """A run that was interrupted after step 4 and continued, and what W&B recorded of it."""

    directory: Path
    result: dict[str, Any]
    starts: list[WandbRun]
    whole: WandbRun


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    directory = tmp_path_factory.mktemp("runs") / "wherever"
    log = WandbLogger.log

    def interrupt(self: WandbLogger, line: dict[str, Any]) -> None:
        log(self, line)
        if line["step"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WandbLogger, "log", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(directory, *OVERRIDES)
    result = run(directory, *OVERRIDES)
    wandb.teardown()  # waits for the service, which completes the file after the run
    files = sorted(directory.glob("wandb/offline-run-*/*.wandb"))
    return Logged(directory, result, [read_offline(file) for file in files], read_offline(*files))


@pytest.mark.capability
def test_a_run_that_is_continued_is_one_run(logged: Logged) -> None:
    assert [part.id for part in logged.starts] == [logged.result["logged"]["id"]] * 2
    first, second = ([line["_step"] for line in part.history] for part in logged.starts)
    assert first[-1] == 4 < second[0] and second[-1] == 10
    assert "result" in logged.whole.summary_metrics and logged.result["status"] == "done"


def test_what_is_printed_uploads_all_starts_of_the_run(logged: Logged) -> None:
    record = RunFiles(logged.directory).read_result()
    assert record is not None and record.logged is not None
    command = where_logged(record.logged, logged.directory).removeprefix("W&B: type ")
    assert command.startswith("wandb sync ")
    done = subprocess.run(
        f"{command} --dry-run", shell=True, capture_output=True, text=True, timeout=patience(120)
    )
    assert "Would sync 2 run(s)" in done.stdout + done.stderr


def test_knobs_are_in_name_tags_and_configuration(logged: Logged) -> None:
    knobs = {"bits=3", "min_size=0", "optimizer.lr=0.02"}
    assert logged.whole.name.split()[0] == "tiny" and knobs <= {*logged.whole.name.split()}
    assert logged.whole.name.endswith("seed=1") and logged.whole.group == "tiny"
    assert knobs | {"model=mlp", "compressor=qsgd"} <= {*logged.whole.tags}
    config = logged.whole.config
    assert config["bits"] == 3 and knobs <= {*config["label"].split()}
    assert config["identity"] == logged.result["identity"]


def test_names_begin_with_what_a_sweep_varies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B's legend cuts them, and rows would all look alike."""
    typed = "name=first model=resnet20 dataset=cifar10 trainer.batch_size=64 compressor=top_k"
    config = config_of(*typed.split(), "optimizer.lr=0.3")
    hydra = {"sweeper": {"params": {"optimizer.lr": "range(1,3)"}}}
    rows = OmegaConf.create({**hydra, "overrides": {"task": ["compressor=none,top_k", "bits=2"]}})
    assert swept_keys(rows) == ["optimizer.lr", "compressor"]
    for swept in (["trainer.batch_size"], swept_keys(rows)):
        monkeypatch.setenv(SWEPT, ",".join(swept))
        name = wandb_logger._describe(config, tmp_path, Begun.here(), own_settings())["name"]
        words = name.split()
        assert words[0] == "first" and words[-1] == "seed=1" and "model=resnet20" in words
        assert {word.partition("=")[0] for word in words[1 : 1 + len(swept)]} == {*swept}


def test_scores_have_axes_of_epochs_bits_and_seconds(logged: Logged) -> None:
    axis = logged.whole.steps_of
    assert axis["test/*"] == axis["train/*"] == axis["compression/*"] == "epoch"
    assert (axis["test_over_bits/*"], axis["test_over_time/*"]) == ("bits/sent", "time/elapsed")
    last = logged.whole.history[-1]
    assert last["test_over_bits/accuracy"] == last["test_over_time/accuracy"]
    assert last["test/accuracy"] == logged.result["test"]["accuracy"]
    assert last["bits/sent"] == logged.result["bits_sent"]["per_worker"]
    assert last["time/elapsed"] > 0


def test_phases_and_bits_stand_in_the_summary_by_keys_of_their_own(logged: Logged) -> None:
    summary, result = logged.whole.summary_metrics, logged.result
    assert {k: summary[f"time/{k}"] for k in result["seconds"]} == {
        k: value["mean"] for k, value in result["seconds"].items()
    }
    assert summary["bits/ratio"] == result["bits_sent"]["ratio"]
    assert summary["best/accuracy"] == result["test"]["best_accuracy"]
    for key in ("time/samples_per_second", "memory/peak_mib", "memory/state_mib"):
        assert summary[key] == result[key.partition("/")[2]]
    assert summary["target/step"] == result["target"]["step"] == 10


def test_a_run_that_was_killed_keeps_its_lines(tmp_path: Path) -> None:
    """It continues after those of its checkpoint, so they would be missing for good."""
    code = f"""
import os, signal, time
from pathlib import Path
from sentence import config_of
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.loggers import start_logger
from gcbench.runner.records.result import Begun

config = config_of("logger.mode=offline")
logger = start_logger(config, RunFiles(Path({str(tmp_path)!r})), Begun.here())
for step in (1, 2):
    logger.log({{"event": "train", "step": step, "epoch": step / 2, "loss": 0.5}})
logger.complete_step()  # as before a checkpoint
time.sleep(2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=patience(120))
    assert done.returncode == -signal.SIGKILL
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history = read_offline(file).history
    assert [(row["_step"], row["train/loss"]) for row in history] == [(1, 0.5), (2, 0.5)]


def test_variables_of_wandb_mean_what_they_mean_where_nothing_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"PROJECT": "p", "ENTITY": "e", "RUN_GROUP": "g", "TAGS": "a,b", "NAME": "n"}
    more = {"RUN_ID": "chosen", "DIR": str(tmp_path / "elsewhere"), "RESUME": "never"}
    for name, value in {**variables, **more}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    (tmp_path / "elsewhere").mkdir()
    typed = "logger.project=q logger.entity=f logger.group=h logger.tags=[c] name=m bits=3".split()
    wandb.teardown()
    logged = []
    for overrides in ([], typed):
        monkeypatch.setenv("WANDB_RUN_ID", f"chosen{len(overrides)}")
        config = config_of("logger.mode=offline", *overrides)
        logger = start_logger(config, RunFiles(tmp_path / "run"), Begun.here())
        logger.log({"event": "train", "step": 1, "epoch": 0.5, "loss": 0.5})
        logger.finish(plain_result())
        wandb.teardown()
        assert logger.logged is not None and logger.logged.path is not None
        (folder,) = Path("/").glob(logger.logged.path.removeprefix("/"))
        assert folder.parent == tmp_path / "elsewhere" / "wandb"
        (file,) = folder.glob("*.wandb")
        logged.append(read_offline(file))
        assert logged[-1].id == f"chosen{len(overrides)}"
    seen = [(one.project, one.entity, one.group, one.tags, one.name) for one in logged]
    assert seen == [("p", "e", "g", ["a", "b"], "n"), ("q", "f", "h", ["c"], "m bits=3 seed=1")]
    assert not (tmp_path / "run" / "wandb").exists()


def metrics_of(node: Any) -> Iterator[str]:
    """Yield the keys that the panels of a dashboard's specification draw."""
    if isinstance(node, dict):
        if "view_type" in node:
            config = node["config"]
            axes = (config.get("x_axis"), config.get("y_axis"))
            drawn = [*(config.get("metrics") or []), *axes]
            yield from (key.removeprefix("summary:") for key in drawn if key)
        for value in node.values():
            yield from metrics_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from metrics_of(value)


def test_every_key_of_the_dashboards_is_in_the_run(logged: Logged) -> None:
    (runs,) = dashboards.select_runs(None, "tiny")
    for make in ("workspace", "report"):
        dashboard = dashboards.specification(getattr(dashboards, make)("team", "gcbench", runs))
        drawn = set(metrics_of(dashboard))
        assert "time/encode" in drawn and "bits/ratio" in drawn
        # A classifier does not log the one, nor a single worker the other.
        assert drawn - logged.whole.keys == {"test/perplexity", "bits/received_ratio"}
        text = json.dumps(dashboard)
        for key in ("experiment", "label", "identity"):
            assert f'"name": "{key}.value"' in text and key in logged.whole.config


class Api:
    def __init__(self, *runs: WandbRun) -> None:
        self._runs = runs

    def runs(self, path: str) -> list[WandbRun]:
        return list(self._runs)


def test_reports_read_from_wandb_what_the_files_say(logged: Logged) -> None:
    found = load_wandb("team/gcbench", Api(logged.whole))
    assert found.unreadable == []
    (read,) = found.runs
    assert read.result == RunFiles(logged.directory).read_result()
    lines = RunFiles(logged.directory).read_metrics()
    assert len(read.read_metrics()) == len(lines) > 5
    for line, same in zip(lines, read.read_metrics(), strict=True):
        assert {k: v for k, v in line.items() if v is not None}.items() <= same.items()


def test_figures_of_runs_are_drawn_from_wandb(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb, "Api", lambda: Api(logged.whole))
    report(["figure=runs", "source=wandb", "project=team/gcbench", f"keep={tmp_path}"])
    drawn = {path.stem for path in tmp_path.rglob("*.svg")}
    assert {"breakdown", "accuracy-over-bits", "accuracy-over-seconds"} <= drawn
