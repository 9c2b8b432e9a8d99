"""Data sets with random access: a batch depends on epoch, step, worker and seed alone.

So a run can resume without any state of its data.

Each module holds one source of data; each YAML file in conf/dataset names a factory that returns a
`Data`.
"""

from __future__ import annotations

from gcbench.runner.data.arrays import ArrayData
from gcbench.runner.data.own import as_data
from gcbench.runner.data.protocol import Data, Kind, Task
from gcbench.runner.data.wikitext2 import TokenData

__all__ = ["ArrayData", "Data", "Kind", "Task", "TokenData", "as_data"]
