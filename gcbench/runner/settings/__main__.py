"""Print the JSON schema of the files of a group of conf/, for editors that complete YAML.

python -m gcbench.runner.settings trainer > trainer.json
python -m gcbench.runner.settings > run.json    # of files with the line `# @package _global_`
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gcbench.core.fields import Settings
from gcbench.core.method_keys import MethodSettings
from gcbench.runner.settings.config import MODELS, PARTS

REFERENCE = {"type": "string", "pattern": r"^\$\{"}  # ${key}, in place of a value


def json_schema(group: str = "") -> dict[str, Any]:
    """Return the schema of the files of a group, or of those that set keys of a whole run."""
    properties = _properties({**PARTS, **MODELS}[group])
    if not group:
        del properties["method"]
        properties |= {name: json_schema(name) for name in PARTS if name != "method"}
        properties |= _properties(MethodSettings)
    keys = {name: {"anyOf": [key, REFERENCE], **_about(key)} for name, key in properties.items()}
    return {
        "type": "object",
        "properties": {"defaults": {"type": "array", "description": "files to begin with"}, **keys},
        # A class that `_target_` names has other keys.
        "additionalProperties": group not in ("trainer", "logger", "resume"),
    }


def _properties(model: type[Settings]) -> dict[str, Any]:
    """Return the schemas of a model's keys; those that a file may lack have no default."""
    properties = model.model_json_schema()["properties"]
    left_out = () if model.total else ("default",)
    return {
        name: {fact: value for fact, value in key.items() if fact not in left_out}
        for name, key in properties.items()
    }


def _about(key: dict[str, Any]) -> dict[str, Any]:
    return {name: key[name] for name in ("description", "default", "examples") if name in key}


if __name__ == "__main__":
    asked = "".join(sys.argv[1:2])
    if asked not in MODELS:
        sys.exit(f"{asked}: type one of {', '.join(filter(None, MODELS))}, or nothing for a run")
    print(json.dumps(json_schema(asked), indent=2))
