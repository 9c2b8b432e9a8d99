"""Sphinx's configuration of the site: the project's pages, as they lie beside what they explain."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

project = "gcbench"
version = release = importlib.metadata.version("gcbench")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "scripts/pages/index"
include_patterns = [
    *("*.md", "conf/**.md", "gcbench/**.md", "outputs/**.md", "scripts/**.md"),
    "scripts/examples/*.ipynb",
]
html_theme = "furo"
html_title = f"gcbench {release}"
nb_execution_mode = "off"  # the tests run the notebook
myst_heading_anchors = 4  # links to headings, as GitHub makes them
autodoc_mock_imports = ["accelerate", "lightning", "transformers"]  # need not be installed
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
suppress_warnings = ["toc.not_included"]  # tables are reached from the pages of their papers
default_role = "code"  # as docstrings quote names


def setup(app: Any) -> None:
    # Before napoleon reads the sections of a docstring.
    app.connect("autodoc-process-docstring", mark_literals, priority=400)
    app.connect("source-read", list_methods)


def list_methods(app: Any, page: str, source: list[str]) -> None:
    """Put the classes of all files of methods where a page says METHODS."""
    files = sorted(Path(app.srcdir, "gcbench", "core", "methods").glob("[!_]*.py"))
    names = [f".. automodule:: gcbench.core.methods.{file.stem}\n   :members:\n" for file in files]
    source[0] = source[0].replace("METHODS\n", "\n".join(names))


def mark_literals(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Mark the indented equations and programs of a docstring, which are plain text there."""
    marked: list[str] = []
    before = ""
    for line in lines:
        if line.startswith("    ") and before[:1].strip() and not marked[-1]:
            marked += ["::", ""]
        plain = line.startswith("    ")
        marked.append(line if plain else re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", line))
        before = line or before
    lines[:] = marked
