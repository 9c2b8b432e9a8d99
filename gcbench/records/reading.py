"""result.json as others left it: read whole and of the right types, or refused with what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

READS = {1}  # schema_version of result.json
DEEPEST = 40  # levels; ours have seven
NUMBER = (int, float)
NOTHING = type(None)

NEEDED: dict[str, tuple[type, ...]] = {
    "status": (str,),
    "choices": (dict,),
    "config": (dict,),
    "started": (str,),
    "finished": (str,),
    "config.seed": (int,),
    "config.model": (dict,),
    "config.dataset": (dict,),
    "config.compressor": (dict,),
    "config.optimizer": (dict,),
    "config.optimizer.lr": NUMBER,
    "config.trainer": (dict,),
    "config.trainer.gpus": (int,),
    "config.trainer.batch_size": (int,),
    "choices.model": (str,),
    "choices.dataset": (str,),
    "choices.compressor": (str,),
}
OF_A_RUN_THAT_ENDED: dict[str, tuple[type, ...]] = {
    "workers": (int,),
    "steps": (int,),
    "steps_per_epoch": (int,),
}
WHERE_THERE: dict[str, tuple[type, ...]] = {
    "reason": (str,),
    "experiment": (str,),
    "choices.budget": (str,),
    "workers": (int,),
    "processes": (int,),
    "parameters": (int,),
    "steps": (int,),
    "steps_per_epoch": (int,),
    "epochs": NUMBER,
    "analytic_ratio": NUMBER,
    "shannon_bits_per_step": NUMBER,
    **dict.fromkeys(("versions", "git", "machine", "network", "estimator", "seconds"), (dict,)),
}
OF_NUMBERS = (
    "test",
    "bits_sent",
    "bits_received",
    "bits_wire",
    "bits_between_nodes",
    "compression_error",
)


def read_result(path: Path) -> dict[str, Any]:
    """OSError or ValueError, which says why, where there is no result that can be read."""
    result = read_json(path)
    if problem := problem_of(result):
        raise ValueError(problem)
    return dict(result)


def read_json(path: Path) -> Any:
    """OSError or ValueError where it is none; with control characters written out."""
    try:
        return printable(json.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise ValueError("is not JSON that anybody would write: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error


def printable(value: Any, depth: int = 0) -> Any:
    """`value` with control characters in its texts written out, as a terminal would obey them."""
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return "".join(
            c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
            for c in value
        )
    if isinstance(value, dict):
        return {printable(key): printable(content, depth + 1) for key, content in value.items()}
    if isinstance(value, list):
        return [printable(content, depth + 1) for content in value]
    return value


def problem_of(result: Any) -> str | None:
    """Why this is no result of a run."""
    if not isinstance(result, Mapping) or "schema_version" not in result:
        return "no result of a run of gcbench"
    version = result["schema_version"]
    if not isinstance(version, int) or version not in READS:
        return f"schema_version {version} is not one that this gcbench reads ({', '.join(map(str, READS))})"
    ended = OF_A_RUN_THAT_ENDED if result.get("status") == "done" and "bits_sent" in result else {}
    for key, types in {**NEEDED, **ended}.items():
        if not _is(_at(result, key), types):
            return (
                f"without {key}"
                if _at(result, key) is None
                else f"its {key} is {_at(result, key)!r:.60}"
            )
    for key, types in WHERE_THERE.items():
        if not _is(_at(result, key), (*types, NOTHING)):
            return f"its {key} is {_at(result, key)!r:.60}"
    seconds = result.get("seconds") or {}
    tables = [result.get(key) or {} for key in OF_NUMBERS] + [
        phase or {} for phase in seconds.values()
    ]
    for table in tables:
        if not isinstance(table, Mapping) or not all(
            _is(value, (*NUMBER, NOTHING)) for value in table.values()
        ):
            return f"no table of numbers: {table!r:.60}"
    for key in ("started", "finished"):
        try:
            datetime.fromisoformat(result[key])
        except ValueError:
            return f"its {key} is {result[key]!r:.60}, no time"
    return None


def _at(result: Mapping[str, Any], key: str) -> Any:
    value: Any = result
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is(value: Any, types: tuple[type, ...]) -> bool:
    """W&B's tables are no dictionaries; a truth value is no number."""
    if isinstance(value, bool):
        return False
    return isinstance(value, types) or (dict in types and isinstance(value, Mapping))
