"""gcbench.compress, run and load_runs from an installed wheel, away from the checkout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from scripts_of_users import python

SCRIPT = """
import pathlib, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gcbench

installed = pathlib.Path(sys.argv[1])
assert pathlib.Path(gcbench.__file__).is_relative_to(installed), gcbench.__file__

meeting = f"file://{pathlib.Path('meeting').resolve()}"
dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
compression = gcbench.compress(model, "powersgd", rank=1)
model(torch.ones(2, 8)).sum().backward()
dist.destroy_process_group()
print(compression.bits_sent)

result = gcbench.run("model=mlp", "compressor=qsgd", bits=2, outputs="outputs", **{
    "model.widths": (16,), "trainer.launcher": "virtual", "trainer.workers": 2,
    "trainer.max_steps": 2, "trainer.threads": 1, "logger": "none"})
print(result.status, *gcbench.load_runs("outputs").bits)
"""


@pytest.mark.slow
def test_a_wheel_holds_all_that_the_three_names_need(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")
    checkout, installed = Path(__file__).parents[3], tmp_path / "installed"
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    python("-m", "pip", "install", *offline, "--target", str(installed), str(checkout))
    assert (installed / "gcbench" / "conf" / "compressor" / "qsgd.yaml").is_file()
    assert (installed / "hydra_plugins").is_dir() and (installed / "gcbench/py.typed").is_file()
    built_from = json.loads((installed / "gcbench" / "built_from.json").read_text())
    head = subprocess.check_output(["git", "-C", str(checkout), "rev-parse", "HEAD"], text=True)
    assert built_from["commit"] == head.strip()
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = python(
        "script.py", str(installed), folder=tmp_path, PYTHONPATH=str(installed)
    ).splitlines()
    bits = 32 * (8 + 4 + 4)  # factors of rank 1, and the bias
    assert printed[0] == str(bits) and printed[-1] == "done 2"
