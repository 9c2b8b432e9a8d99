"""Methods of a user's own: classes and objects in compress, and packages that bring them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import outside
import pytest
import torch
from gloo_pool import Process, pool
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.errors import ConfigError
from gcbench.core.library.compress import make_method, name_of
from gcbench.core.methods.qsgd import QSGD

SUPPORT = Path(outside.__file__).parent


def updates(process: Process, compressor: Any, knobs: dict[str, Any]) -> tuple[str, torch.Tensor]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(64, 32))
    handle = gcbench.compress(ddp, compressor, **knobs)
    torch.manual_seed(process.rank)
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.randn(4, 64)).square().sum().backward()
    return repr(handle), ddp.module.weight.grad.clone()


def test_a_class_an_object_and_a_name_are_the_same_method() -> None:
    built = gcbench.build(QSGD(7), error_feedback=True, alpha=0.2, beta=0.9)
    feedback = {"error_feedback": True, "alpha": 0.2, "beta": 0.9}
    (_, expected), _ = pool(2).run(updates, built, {})
    for compressor, knobs in (
        (QSGD, {"levels": 7, **feedback}),
        (QSGD(7), feedback),
        ("gcbench.core.methods.qsgd.QSGD", {"levels": 7, **feedback}),
    ):
        for text, got in pool(2).run(updates, compressor, knobs):
            assert torch.equal(got, expected), compressor
            assert "QSGD " in text and "error_feedback=true alpha=0.2" in text


def test_mistakes_say_what_to_type() -> None:
    for compressor, knobs, words in (
        (QSGD, {"levls": 7}, "levls: QSGD has no such knob; it has .*levels"),
        (QSGD, {"levels": 200}, "compressor=QSGD: levels=200: type a whole number from 1 to 127"),
        (QSGD, {}, "compressor=QSGD: .*levels"),
        (QSGD(7), {"levels": 3}, "levels: this object has its knobs already"),
        (gcbench.build(QSGD(7)), {"alpha": 1.0}, "alpha: this object has its knobs already"),
        (QSGD(7), {"align": True, "exchange": "sum"}, "only gathered codes are aligned"),
        ("nowhere.Mine", {}, "compressor=nowhere.Mine cannot be imported: No module named 'nowh"),
        ("torch.nn.Nothing", {}, "compressor=torch.nn.Nothing cannot be imported: .*Nothing"),
        ("torch.mean", {}, "compressor=torch.mean: this is no class"),
        (nn.Linear, {"in_features": 1, "out_features": 1}, "this is not a compressor"),
        (3, {}, "compressor=3: this is not a compressor"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_method(compressor, knobs)


def test_a_method_is_called_what_was_typed() -> None:
    assert name_of("powersgd", {"rank": 2, "error_feedback": False}) == (
        "powersgd rank=2 error_feedback=false"
    )
    assert name_of(QSGD, {"levels": 7}) == "QSGD levels=7"
    assert name_of(QSGD(7), {}) == "QSGD"


def load_another(process: Process) -> str:
    ddp = DistributedDataParallel(nn.Linear(64, 32))
    handle = gcbench.compress(ddp, "powersgd", rank=2)
    state = handle.state_dict()
    handle.remove()
    other = gcbench.compress(ddp, "powersgd", rank=4)
    with pytest.raises(ConfigError) as refused:
        other.load_state_dict(state)
    return str(refused.value)


def test_another_methods_state_is_refused_by_what_was_typed() -> None:
    for said in pool(2).run(load_another):
        assert said.startswith(
            "the saved state has compressor=powersgd rank=2, and this compression has powersgd "
            "rank=4; "
        )


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which a package is installed that brings a method."""
    package = tmp_path / "site" / "my_package"
    (package / "conf" / "compressor").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported for its folder')\n")
    shutil.copy(SUPPORT / "outside.py", tmp_path / "site")
    shutil.copy(SUPPORT / "outside_conf/compressor/powers.yaml", package / "conf/compressor")
    facts = tmp_path / "site" / "my_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[gcbench.conf]\nmine = my_package:conf\n")
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"}


def typed(words: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gcbench", *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.capability
def test_a_package_brings_methods(installed: dict[str, str], tmp_path: Path) -> None:
    assert "powers" in typed(["methods"], installed, tmp_path)
    config = typed(["compressor=powers", "min_size=7", "--cfg", "job"], installed, tmp_path)
    assert "_target_: outside.Natural" in config and "min_size: 7" in config
    script = (
        "from gcbench.core.method_files import make_compressor, read_method\n"
        "print(make_compressor(read_method('powers', {'min_size': 0})['compressor']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=installed,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Natural()" in done.stdout, done.stderr


def test_a_package_without_its_folder_is_named(installed: dict[str, str], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "site/my_package/conf")
    said = typed(["methods"], installed, tmp_path)
    assert "entry point gcbench.conf: mine = 'my_package:conf': there is no such folder" in said
