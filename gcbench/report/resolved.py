"""Stored configurations of all experiments, so that reports need not compose them.

Composing one takes 0.15 s, and a report on all claims asks for hundreds. `scripts/resolve` writes
them to conf/experiment/resolved.jsonl.gz, with a hash of the files that they came from. If these
have changed since, reports compose what they need and say so.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from gcbench.config import conf_directory
from gcbench.config.register import defaults_of_groups
from gcbench.identity import Config

log = logging.getLogger("gcbench")

# Files and folders of conf/ that no stored configuration comes from.
NO_PART = {
    "bench.yaml",
    "changes.yaml",
    "claims.yaml",
    "deviations.yaml",
    "devices",
    "hydra",
    "links.yaml",
    "table",
}
# Lines and ends of lines that are comments, but for `# @package`, which Hydra reads.
COMMENT = re.compile(rb"^[ \t]*#(?! @package).*\n|[ \t]+#.*", re.MULTILINE)


def key_of(experiment: str, budget: str, overrides: Iterable[str]) -> str:
    """Return the key of a configuration, for example `powersgd/table4/rank_2 budget=cpu`."""
    return " ".join([experiment, f"budget={budget}", *overrides])


@cache
def read_resolved() -> Mapping[str, Config]:
    """Return the stored configurations by `key_of`; none if conf/ has changed since."""
    path = _stored()
    if not path.is_file():
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = iter(file)
        if json.loads(next(lines)) != hash_conf():
            log.warning(
                "conf/ has changed since scripts/resolve was run: configurations are composed "
                "anew, which takes a while"
            )
            return {}
        return dict(json.loads(line) for line in lines)


def write_resolved(configs: Mapping[str, Config]) -> Path:
    """Write the configurations to a byte-for-byte reproducible file, and return its path."""
    lines = [hash_conf(), *([key, config] for key, config in sorted(configs.items()))]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    _stored().write_bytes(gzip.compress(text.encode(), mtime=0))
    return _stored()


def hash_conf() -> str:
    """Return a hash of what configurations are composed from: defaults, conf/ without comments."""
    root = conf_directory()
    hashed = hashlib.sha256(json.dumps(defaults_of_groups()).encode())
    for path in sorted(root.rglob("*.yaml")):
        inside = path.relative_to(root)
        if inside.parts[0] not in NO_PART:
            hashed.update(f"{inside.as_posix()}\n".encode() + COMMENT.sub(b"", path.read_bytes()))
    return hashed.hexdigest()


def _stored() -> Path:
    return conf_directory() / "experiment" / "resolved.jsonl.gz"
