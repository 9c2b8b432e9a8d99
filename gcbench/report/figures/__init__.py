"""Figures of tables, studies and everything that ran, as svg and png."""

from __future__ import annotations

from gcbench.report.figures.draw import draw

__all__ = ["draw"]
