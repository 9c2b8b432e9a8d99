"""Data sets with random access: a batch follows from epoch, step, worker and seed alone.

So resuming is trivial.

One module holds one source of data; each yaml in conf/dataset names a factory that returns a
`Data`.
"""

from __future__ import annotations

from gcbench.data.arrays import ArrayData
from gcbench.data.own import as_data
from gcbench.data.protocol import Data, Kind, Task
from gcbench.data.tokens import TokenData

__all__ = ["ArrayData", "Data", "Kind", "Task", "TokenData", "as_data"]
