"""Three houses, core <- runner <- papers: imports go one way, and few import heavy libraries."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import gcbench

PACKAGE = Path(gcbench.__file__).parent
# What each house may import of the others. `integrations` is a public place of the core.
HOUSES = {
    "core": {"core"},
    "integrations": {"core", "integrations"},
    "runner": {"core", "runner"},
    "papers": {"core", "runner", "papers"},
}
# Rooms of the core, and of the runner, and which of their own house they may import.
ROOMS = {
    "core": {
        "comm": set(),
        "codecs": set(),
        "methods": {"codecs", "comm", "exchange", "wrappers"},
        "exchange": {"codecs", "comm", "methods", "wrappers"},
        "wrappers": {"codecs", "comm", "exchange", "methods"},
        "library": {"codecs", "comm", "exchange", "methods", "wrappers"},
    },
    "runner": {
        "models": set(),
        "data": set(),
        "config": set(),
        "records": {"config"},
        "train": {"data", "models", "records"},
        "launch": {"config", "train", "data", "models", "records"},
        "bench": {"config", "launch", "train", "data", "records"},
        "check": {"config", "launch", "records"},
        "predict": {"config", "launch", "bench", "records"},
        "profile": {"bench", "config", "predict", "records"},
        "report": {"config", "records", "predict"},
        "command": {"config", "launch", "bench", "records", "report"},
    },
}
ONLY_IN = {
    "hydra": {
        "runner/command",
        "runner/config",
        "runner/launch",
    },
    "omegaconf": {
        "runner/command",
        "runner/config",
        "runner/launch",
    },
    "rich": {"runner", "papers"},
    "torch.distributed": {
        "core/comm",
        "core/library",
        "core/meeting",
        "integrations",
        "runner/control",
        "runner/launch",
        "runner/bench",
        "runner/check",
        "runner/profile",
    },
    "wandb": {"runner/records", "runner/report", "papers"},
    "matplotlib": {"runner/report", "runner/predict", "runner/drawing", "papers"},
    "pandas": {"runner/report", "runner/console", "runner/frames", "papers"},
    "rich.table": {"runner/console"},
    "sklearn": {"runner/data"},
    "torchvision": {"runner/data", "runner/models"},
}
# All that the core needs, beside Python; the last ones only for some of its methods.
OF_CORE = {"torch", "numpy", "pydantic", "pydantic_core", "typing_extensions", "yaml"}
OF_CORE |= {"constriction", "scipy", "triton"}


def imports() -> list[tuple[Path, str]]:
    """Return (file, imported module) of every import in the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [(inside, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{inside}: a relative import"
                assert node.module
                found.append((inside, node.module))
    return found


def test_houses_import_one_way() -> None:
    assert HOUSES.keys() == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    for path, module in imports():
        house = path.parts[0]
        if house in ("__init__.py", "__main__.py") or not module.startswith("gcbench."):
            continue
        other = module.split(".")[1]
        assert house in HOUSES, f"{path} stands in no house"
        assert other in HOUSES[house], f"{path} imports {module}"


def test_houses_name_no_higher_one() -> None:
    """Nor do texts, by which modules may be imported, too."""
    for house, higher in {"core": "runner|papers", "runner": "papers"}.items():
        for path in (PACKAGE / house).rglob("*.py"):
            named = re.search(rf"gcbench\.(?:{higher})\b|\"papers\.", path.read_text())
            assert not named, f"{path.relative_to(PACKAGE)}: {named and named[0]}"


def test_rooms_import_one_way() -> None:
    for path, module in imports():
        house, room = path.parts[0], path.parts[1] if path.parts[2:] else ""
        parts = module.split(".")
        if parts[:2] != ["gcbench", house] or house not in ROOMS or room in ("", "settings"):
            continue
        rooms = ROOMS[house]
        assert room in rooms, f"{path} is in no room"
        other = ".".join(parts[2:3])
        assert other not in rooms or other in rooms[room] | {room}, f"{path} imports {module}"


def test_the_core_needs_little() -> None:
    for path, module in imports():
        if path.parts[0] == "core":
            first = module.partition(".")[0]
            known = first in OF_CORE | {"gcbench"} | sys.stdlib_module_names
            assert known, f"{path} imports {module}"


def test_the_core_alone_compresses(tmp_path: Path) -> None:
    """Nothing of the runner is loaded, and no Hydra, by `gcbench.compress` and a method."""
    code = (
        "import sys, gcbench\n"
        "gcbench.compress, gcbench.Codec, gcbench.local_steps\n"
        "from gcbench.core.method_files import make_compressor, read_method\n"
        "make_compressor(read_method('powersgd', {'rank': 1})['compressor'])\n"
        "loaded = [name for name in sys.modules if name.startswith(('gcbench.runner', "
        "'gcbench.papers', 'hydra', 'omegaconf', 'rich', 'wandb'))]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)


def test_a_package_without_papers_reports(tmp_path: Path) -> None:
    """The runner is whole without what was done with it."""
    code = (
        "import sys, importlib.abc\n"
        "class NoPapers(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('gcbench.papers'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NoPapers())\n"
        "sys.argv = ['gcbench', *sys.argv[1:]]\n"
        "from gcbench.__main__ import main\n"
        "main()\n"
    )
    asked = [
        ("report", 1, "type name=NAME for a sweep"),
        ("runs", 0, "no runs there"),
        ("papers", 1, "there is no such"),
    ]
    for line, status, told in asked:
        ended = subprocess.run(
            [sys.executable, "-c", code, *line.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == status and told in ended.stdout + ended.stderr, ended


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


def test_no_text_stands_alone() -> None:
    """A docstring stands below what it documents; one that was left behind documents nothing."""
    for path in PACKAGE.rglob("*.py"):
        _, *body = ast.parse(path.read_text()).body or [None]
        for before, node in itertools.pairwise(body):
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert not is_text or isinstance(before, (ast.Assign, ast.AnnAssign)), path


def test_an_entropy_coder_is_needed_only_by_who_uses_it() -> None:
    """A GPU that is lent for minutes may be on a machine that cannot install it."""
    tree = ast.parse((PACKAGE / "core/codecs/packing.py").read_text())
    first = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    assert "torch" in first and "constriction" not in first


def test_libraries_stay_in_their_rooms() -> None:
    for path, module in imports():
        place = path.with_suffix("").as_posix()
        for library, rooms in ONLY_IN.items():
            if module == library or module.startswith(f"{library}."):
                inside = any(f"{place}/".startswith(f"{room}/") for room in rooms)
                assert inside, f"{path} imports {module}"


def test_hydra_is_used_as_it_is_published() -> None:
    """What its underscore hides changes with any release."""
    private = [(path, module) for path, module in imports() if module.startswith("hydra._")]
    assert not private


def test_what_reads_files_only_imports_no_torch(tmp_path: Path) -> None:
    """Importing torch would delay each of these by seconds, and wandb by one."""
    code = (
        "import sys, gcbench, gcbench.runner.predict.command\n"
        "from gcbench.runner.command.main import main\n"
        "from gcbench.papers.commands import add_commands\n"
        "add_commands()\n"
        "claim = 'papers claims id=qsgd-01-unbiased'\n"
        "for line in ['--help', 'methods', 'papers tables', 'runs', claim]:\n"
        "    sys.argv = ['gcbench', *line.split()]\n"
        "    main()\n"
        "    assert not {'torch', 'wandb', 'pandas'} & {*sys.modules}, line\n"
        "gcbench.load_runs('.')\n"
        "assert not {'torch', 'wandb'} & {*sys.modules}, 'load_runs'\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)
