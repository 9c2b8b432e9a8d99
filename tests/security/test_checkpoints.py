"""Checkpoints and records that are damaged or hostile are refused by name, and run no code."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import Exploit
from nightly import slow_but
from results import plain_result
from sentence import run

from gcbench.core.errors import ConfigError
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.records.files import RunFiles

OVERRIDES = [
    "trainer.launcher=virtual",
    "trainer.checkpoint_steps=2",
    "trainer.checkpoint_keep=2",
    "trainer.eval_every=null",
    "trainer.keep_weights=false",  # so that no state is kept at the end, either
]
LAST = "checkpoints/step-00000006"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, *OVERRIDES, "trainer.max_steps=7")
    (folder / "result.json").unlink()
    return folder


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """Return a run that was killed after its checkpoint of step 6."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def goes_on(folder: Path) -> dict[str, Any]:
    return run(folder, *OVERRIDES, "trainer.max_steps=7")


def change_manifest(manifest: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and give it a matching checksum, as an attacker would."""
    content = json.loads(manifest.read_text())
    del content["checksum"]
    change(content)
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({**content, "checksum": checksum}))


def test_an_undamaged_run_goes_on(cut: Path) -> None:
    assert goes_on(cut)["status"] == "done"


@pytest.mark.parametrize(
    "text",
    slow_but(
        ["", "null", "[" * 100_000, '{"format": 7}'],
        ["", "{}", "null", "[]", "3", '{"format": "6"}', "[" * 100_000, '{"format": 7}'],
    ),
    ids=lambda text: text[:16] or "empty",
)
def test_a_manifest_that_is_none_is_refused_by_name(cut: Path, text: str) -> None:
    (cut / LAST / "manifest.json").write_text(text)
    says = r"step-00000006/manifest.json is missing or damaged .*continue from step-00000004"
    with pytest.raises(ConfigError, match=says):
        goes_on(cut)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"workers": 2', '"workers": 1'), ('"step"', '"stfp"'), ("worker-0", "worker-1")],
)
def test_a_flipped_letter_in_a_manifest_is_seen(cut: Path, old: str, new: str) -> None:
    manifest = cut / LAST / "manifest.json"
    manifest.write_text(manifest.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match="manifest.json is missing or damaged"):
        goes_on(cut)


def test_a_stray_folder_is_refused_by_name(cut: Path) -> None:
    stray = cut / "checkpoints" / "step-99999999"
    stray.mkdir()
    (stray / "manifest.json").touch()
    says = "step-99999999/manifest.json is missing or damaged .*remove .*step-99999999"
    with pytest.raises(ConfigError, match=says):
        goes_on(cut)


def test_checkpoints_that_are_a_file(cut: Path) -> None:
    shutil.rmtree(cut / "checkpoints")
    (cut / "checkpoints").touch()
    with pytest.raises(ConfigError, match="checkpoints is not a folder; move it away"):
        goes_on(cut)


@pytest.mark.parametrize("step", slow_but([10**9, "6"], [10**9, -1, 0, "6", None]))
def test_a_forged_step_is_refused(cut: Path, step: Any) -> None:
    change_manifest(cut / LAST / "manifest.json", lambda content: content.update(step=step))
    says = "manifest.json is missing or damaged .it is not what gcbench writes"
    with pytest.raises(ConfigError, match=says):
        goes_on(cut)


def replace_shared(folder: Path, content: bytes) -> None:
    (folder / "shared.pt").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    change_manifest(
        folder / "manifest.json", lambda manifest: manifest["sha256"].update({"shared.pt": digest})
    )


def test_a_forged_step_beyond_the_end_inside_the_file_is_refused(cut: Path) -> None:
    shared = torch.load(cut / LAST / "shared.pt", weights_only=True)
    torch.save({**shared, "step": 10**9}, cut / "forged.pt")
    replace_shared(cut / LAST, (cut / "forged.pt").read_bytes())
    with pytest.raises(RunFailed, match="shared.pt is missing or damaged .it is of another step"):
        goes_on(cut)


def test_a_checkpoint_runs_no_code(cut: Path, tmp_path: Path) -> None:
    replace_shared(cut / LAST, pickle.dumps(Exploit(tmp_path / "ran")))
    says = "shared.pt is missing or damaged .torch.load says UnpicklingError.*from step-00000004"
    with pytest.raises(ConfigError, match=says):
        goes_on(cut)
    assert not (tmp_path / "ran").exists()


def test_metrics_that_are_no_text_are_named(cut: Path) -> None:
    (cut / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(RunFailed, match="metrics.jsonl is not UTF-8 text"):
        goes_on(cut)


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write .*result.json .*; .*gone is no longer there"):
        RunFiles(tmp_path / "gone").write_result(plain_result())
