"""Rows of the papers' tables as methods whose steps can be predicted."""

from __future__ import annotations

import json
from dataclasses import replace

from gcbench.config import Config
from gcbench.identity import CHOICE_GROUPS
from gcbench.launch.instantiate import make_compressor
from gcbench.predict.devices import read_device
from gcbench.predict.model import Method
from gcbench.predict.subject import facts_of, make_method, shapes_of_model
from gcbench.report.configs import compose
from gcbench.report.tables import TableRow

_counted: dict[str, Method] = {}  # for rows that differ only in their workers


def config_of(row: TableRow, *overrides: str) -> Config:
    """Return the row's configuration, with `overrides` after its own."""
    return compose(str(row.experiment), overrides=(*row.overrides, *overrides)).config


def method_of(row: TableRow, device: str, *overrides: str) -> Method:
    """Return the method of a row, with its codec seconds on a device."""
    config = config_of(row, *overrides)
    model, dataset, family = (config["choices"][group] for group in CHOICE_GROUPS)
    key = json.dumps([config["compressor"], config["model"], model, dataset, family, device])
    if key not in _counted:
        shapes = shapes_of_model(config["model"], facts_of(model, dataset))
        compressor = make_compressor(config["compressor"], quiet=True)
        _counted[key] = make_method("", family, compressor, shapes, read_device(device))
    return replace(_counted[key], title=row.label)
