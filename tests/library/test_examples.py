"""What scripts/examples shows runs as it stands, and importing gcbench costs nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"


def python(*words: str, folder: Path | None = None) -> str:
    """Return what a command of Python prints, in an environment as users have it."""
    ended = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_own_training_under_torchrun() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    printed = python(*torchrun, str(EXAMPLES / "own_training.py"))
    match = re.search(r"accuracy (\S+), (\S+) times fewer bits", printed)
    assert match and float(match[1]) > 0.9 and float(match[2]) > 20


def test_importing_the_package_imports_no_heavy_library() -> None:
    heavy = {"torch", "pandas", "hydra", "numpy"}
    loaded = python("-c", "import gcbench, sys; dir(gcbench); print(*sys.modules)").split()
    assert "gcbench" in loaded and not heavy & set(loaded)


def test_composing_inside_of_an_application_that_uses_hydra(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("lr: 1\n")
    (tmp_path / "app.py").write_text(
        "import hydra\n"
        "from hydra.core.global_hydra import GlobalHydra\n"
        "from gcbench.config import resolve_words\n"
        "@hydra.main(config_path='.', config_name='conf', version_base='1.3')\n"
        "def main(conf):\n"
        "    before = GlobalHydra.instance().hydra\n"
        "    print(resolve_words(['compressor=powersgd', 'rank=3'])[0]['rank'])\n"
        "    assert GlobalHydra.instance().hydra is before is not None\n"
        "main()\n"
    )
    assert python("app.py", folder=tmp_path).strip() == "3"
