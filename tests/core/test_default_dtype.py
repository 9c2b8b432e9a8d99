"""`torch.set_default_dtype` is the user's; it changes nothing of ours."""

from __future__ import annotations

import ast
from pathlib import Path

import gcbench

PACKAGE = Path(gcbench.__file__).parent
ROOMS = (
    *(f"core/{room}" for room in "codecs comm exchange library methods wrappers".split()),
    "runner/train",
)
FLOATS = {*"empty zeros ones eye rand randn linspace".split()}  # by default of the default dtype


def test_every_new_tensor_has_its_dtype() -> None:
    """Else it has the default dtype, which native code, or another worker, would misread."""
    assert all((PACKAGE / room).is_dir() for room in ROOMS)
    without = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for room in ROOMS
        for path in (PACKAGE / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "torch"
        and node.func.attr in FLOATS
        and not any(keyword.arg == "dtype" for keyword in node.keywords)
    ]
    assert not without


def test_only_two_modules_take_addresses_of_tensors() -> None:
    """For C++ one checks their type and size; for Triton another checks that rows have no gaps."""
    takers = {path for path in PACKAGE.rglob("*.py") if "data_ptr(" in path.read_text()}
    assert takers == {PACKAGE / "core" / "codecs" / f"{name}.py" for name in ("launches", "native")}
