"""Rooms (subpackages and top-level modules) import one way, and few import heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import gcbench

PACKAGE = Path(gcbench.__file__).parent
# Plain modules that every room may import.
SHARED = {*"identity settings seeds private deadline reasons console drawing".split()}
MAY_IMPORT = {
    "comm": set(),
    "codecs": set(),
    "models": set(),
    "data": set(),
    "records": {"config"},
    "compressors": {"codecs", "comm"},
    "train": {"compressors", "codecs", "comm", "data", "models", "records"},
    "config": set(),
    "launch": {"config", "train", "compressors", "codecs", "comm", "data", "models", "records"},
    "bench": {"config", "launch", "train", "compressors", "codecs", "comm", "data", "records"},
    "check": {"config", "launch", "library", "compressors", "codecs", "comm", "records"},
    "predict": {"config", "launch", "compressors", "comm", "records"},
    "report": {"config", "records", "comm", "predict"},
    "studies": {
        *"config launch bench check compressors codecs comm records predict report".split()
    },
    "library": {"config", "launch", "train", "compressors", "codecs", "comm", "records", "report"},
    "cli": {*"config launch bench check report studies predict search sweep_progress tune".split()},
    "sweep_progress": {"config", "launch", "records", "report", "search"},
    "search": {"config", "records", "report"},
    "job_queue": {"launch", "records", "report"},
    "tune": {"config", "launch", "records", "report", "job_queue"},
    "__main__": {"cli"},
    "identity": set(),
    "settings": set(),
    "seeds": set(),
    "private": set(),
    "deadline": set(),
    "reasons": set(),
    "console": set(),
    "drawing": set(),
}
ONLY_IN = {
    "hydra": {"cli", "config", "launch", "search", "sweep_progress"},
    "omegaconf": {"cli", "config", "launch", "search", "sweep_progress"},
    "pydantic": {*"settings tune config compressors data models predict records report".split()},
    "torch.distributed": {"comm", "launch", "bench", "check", "library"},
    "wandb": {"records", "report"},
    "matplotlib": {"report", "predict", "drawing"},
    "pandas": {"report", "console", "library"},
    "rich.table": {"console"},
    "sklearn": {"data"},
    "torchvision": {"data", "models"},
}


def imports() -> list[tuple[Path, str, str]]:
    """Return (file, room, imported module) of every import in the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        room = inside.parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [(inside, room, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = f"gcbench.{room}" if node.level else ""
                found.append((inside, room, ".".join(filter(None, [base, node.module]))))
    return found


def test_every_room_is_known() -> None:
    assert {room for _, room, _ in imports()} <= set(MAY_IMPORT)


def test_rooms_import_one_way() -> None:
    for path, room, module in imports():
        if module.startswith("gcbench."):
            other = module.split(".")[1]
            assert other in {room} | SHARED | MAY_IMPORT[room], f"{path} imports {module}"


def test_an_entropy_coder_is_needed_only_by_who_uses_it() -> None:
    """A GPU that is lent for minutes may be on a machine that cannot install it."""
    tree = ast.parse((PACKAGE / "codecs/entropy.py").read_text())
    first = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    assert "torch" in first and "constriction" not in first


def test_libraries_stay_in_their_rooms() -> None:
    for path, room, module in imports():
        for library, rooms in ONLY_IN.items():
            if module == library or module.startswith(f"{library}."):
                assert room in rooms, f"{path} imports {module}"


def test_what_reads_files_only_imports_no_torch(tmp_path: Path) -> None:
    """Importing torch would delay each of these by seconds, and wandb by one."""
    code = (
        "import sys, gcbench, gcbench.predict.command\n"
        "from gcbench.cli import main\n"
        "for line in ['--help', 'methods', 'report list', 'runs', 'claims id=qsgd-01-unbiased']:\n"
        "    sys.argv = ['gcbench', *line.split()]\n"
        "    main()\n"
        "    assert not {'torch', 'wandb', 'pandas'} & {*sys.modules}, line\n"
        "gcbench.load_runs('.')\n"
        "assert not {'torch', 'wandb'} & {*sys.modules}, 'load_runs'\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)
