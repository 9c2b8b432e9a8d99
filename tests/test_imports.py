"""Rooms (subpackages and top-level modules) import one way, and few import heavy libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection
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
    "predict": {"config", "launch", "bench", "codecs", "compressors", "comm", "records"},
    "report": {"config", "records", "comm", "predict"},
    # What was done with the instrument: nothing else imports it.
    "papers": {
        *"config launch bench check compressors codecs comm records predict report".split(),
    },
    "library": {"config", "launch", "train", "compressors", "codecs", "comm", "records", "report"},
    "integrations": {"config", "compressors", "library"},
    "cli": {*"config launch bench search sweep_progress".split()},
    "sweep_progress": {"config", "launch", "records", "report", "search"},
    "search": {"config", "records", "report"},
    "example": {"config"},
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
    "pydantic": {
        *"settings papers config compressors data models predict records report".split(),
    },
    "torch.distributed": {"comm", "launch", "bench", "check", "library", "integrations"},
    "wandb": {"records", "report", "papers"},
    "matplotlib": {"report", "papers", "predict", "drawing"},
    "pandas": {"report", "papers", "console", "library"},
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


def test_no_circle_of_files() -> None:
    """Imports inside functions count; those for types alone, which never run, do not."""
    files = {_module(path): path for path in PACKAGE.rglob("*.py")}
    left = {name: _imported(ast.parse(path.read_text()), files) for name, path in files.items()}
    while ends := [name for name, needs in left.items() if not needs & (left.keys() - {name})]:
        for name in ends:
            del left[name]
    assert not left, "each of these imports another one of them"


def _module(path: Path) -> str:
    inside = path.relative_to(PACKAGE.parent).with_suffix("")
    return ".".join(inside.parts).removesuffix(".__init__")


def _imported(tree: ast.AST, files: Collection[str]) -> set[str]:
    """Return the files that a tree imports when it runs."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return set()
    names = set()
    if isinstance(tree, ast.Import):
        names = {alias.name for alias in tree.names}
    elif isinstance(tree, ast.ImportFrom) and tree.module:
        names = {f"{tree.module}.{alias.name}" for alias in tree.names}
        names = {name if name in files else tree.module for name in names}
    inside = (_imported(child, files) for child in ast.iter_child_nodes(tree))
    return {*names & {*files}}.union(*inside)


def test_only_the_table_of_subcommands_names_the_papers() -> None:
    """The instrument is whole without what was done with it, also by names in texts."""
    named = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"gcbench\.papers|\"papers\.", path.read_text())
    }
    assert {name for name in named if not name.startswith("papers/")} == {"cli.py"}


def test_an_entropy_coder_is_needed_only_by_who_uses_it() -> None:
    """A GPU that is lent for minutes may be on a machine that cannot install it."""
    tree = ast.parse((PACKAGE / "codecs/packing.py").read_text())
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
