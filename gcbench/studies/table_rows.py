"""Rows of the papers' tables as methods whose steps can be predicted."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

from gcbench.config import Config
from gcbench.launch.instantiate import make_compressor
from gcbench.predict.devices import read_device
from gcbench.predict.model import Method
from gcbench.predict.subject import facts_of, make_method, shapes_of_model
from gcbench.report.configs import compose
from gcbench.report.tables import TableRow


def config_of(row: TableRow, *overrides: str) -> Config:
    """Return the row's configuration, with `overrides` after its own."""
    return compose(str(row.experiment), overrides=(*row.overrides, *overrides)).config


def method_of(row: TableRow, device: str, *overrides: str) -> Method:
    """Return the method of a row, with its codec seconds on a device."""
    config = config_of(row, *overrides)
    choices = config["choices"]
    counted = _count(
        json.dumps(config["compressor"]),
        json.dumps(config["model"]),
        choices["model"],
        choices["dataset"],
        choices["compressor"],
        device,
    )
    return replace(counted, title=row.label)


@cache
def _count(
    compressor: str, node: str, model: str, dataset: str, family: str, device: str
) -> Method:
    """Return a method, whose payload is counted once for rows that differ only in their workers."""
    shapes = shapes_of_model(json.loads(node), facts_of(model, dataset))
    made = make_compressor(json.loads(compressor), quiet=True)
    return make_method("", family, made, shapes, read_device(device))
