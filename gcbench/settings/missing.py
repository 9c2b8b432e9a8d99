"""The default of a key whose value has to come from conf/."""

from __future__ import annotations

from typing import Any

MISSING: Any = "???"  # OmegaConf's mark for a value that conf/ must give
