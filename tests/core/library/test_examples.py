"""The examples in scripts/examples run unchanged, and importing gcbench is cheap."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from needed import patience
from processes import Copy, script, under_torchrun
from scripts_of_users import python

EXAMPLES = Path(__file__).parents[3] / "scripts" / "examples"


def is_accurate_and_small(printed: str) -> bool:
    match = re.search(r"accuracy (\S+), (\S+) times fewer bits", printed)
    return match is not None and float(match[1]) > 0.9 and float(match[2]) > 20


def test_own_training_of_two_ranks(tmp_path: Path) -> None:
    example = [str(EXAMPLES / "own_training.py")]
    ended = under_torchrun(script, example, example, folder=tmp_path, timeout=patience(300))
    assert [done.returncode for done in ended] == [0, 0], ended
    assert is_accurate_and_small(ended[0].stdout)


@pytest.mark.slow  # the test above sets torchrun's variables itself
def test_own_training_under_torchrun() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert is_accurate_and_small(python(*torchrun, str(EXAMPLES / "own_training.py")))


@pytest.mark.slow
def test_the_notebook(tmp_path: Path) -> None:
    """Its cells are run unchanged, in one process."""
    notebook = json.loads((EXAMPLES / "compare.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    check = "assert len(runs) == 6 and len(axes.get_lines()) == 6 and not train.loss.isna().any()"
    file = tmp_path / "cells.py"
    file.write_text("\n\n".join([*cells, check, "figure.savefig('curves.png')"]))
    with Copy(script, str(file), folder=tmp_path) as copy:
        ended = copy.wait(patience(100))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines[-6:]] == ["none"] + ["qsgd"] * 3 + ["powersgd"] * 2
    assert (tmp_path / "curves.png").is_file()


def test_examples_are_copied_where_they_are_to_be_edited(
    tmp_path: Path,
    typed: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wheel has them, too."""
    monkeypatch.chdir(tmp_path)
    _, listed, _ = typed("example")
    for name in (path.name for path in EXAMPLES.iterdir() if path.is_file()):
        assert name in listed
        code, printed, _ = typed("example", name)
        assert code == 0 and printed.startswith(f"{name}: type ")
        assert Path(name).read_bytes() == (EXAMPLES / name).read_bytes()
    code, _, error = typed("example", "compare.ipynb")
    assert code == 1 and "there is such a file already" in error
    project = (EXAMPLES.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"scripts/examples" = "gcbench/examples"' in project


def test_importing_the_package_imports_no_heavy_library() -> None:
    heavy = {"torch", "pandas", "hydra", "numpy"}
    loaded = python("-c", "import gcbench, sys; dir(gcbench); print(*sys.modules)").split()
    assert "gcbench" in loaded and not heavy & set(loaded)


def test_composing_inside_of_an_application_that_uses_hydra(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("lr: 1\n")
    (tmp_path / "app.py").write_text(
        "import hydra\n"
        "from hydra.core.global_hydra import GlobalHydra\n"
        "from gcbench.runner.config.compose import resolve_overrides\n"
        "@hydra.main(config_path='.', config_name='conf', version_base='1.3')\n"
        "def main(conf):\n"
        "    before = GlobalHydra.instance().hydra\n"
        "    print(resolve_overrides(['compressor=powersgd', 'rank=3'])[0].method.rank)\n"
        "    assert GlobalHydra.instance().hydra is before is not None\n"
        "main()\n"
    )
    assert python("app.py", folder=tmp_path).strip() == "3"
