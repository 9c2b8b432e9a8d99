"""The only room that issues collectives."""

from gcbench.comm.base import Clock, Comm, Control
from gcbench.comm.buckets import in_buckets
from gcbench.comm.checksum import ChecksumComm
from gcbench.comm.meter import Meter
from gcbench.comm.network import Link
from gcbench.comm.nodes import Nodes, node_size
from gcbench.comm.process_group import ProcessGroupComm, ProcessGroupControl
from gcbench.comm.virtual import LocalControl, VirtualComm

__all__ = [
    "ChecksumComm",
    "Clock",
    "Comm",
    "Control",
    "Link",
    "LocalControl",
    "Meter",
    "Nodes",
    "ProcessGroupComm",
    "ProcessGroupControl",
    "VirtualComm",
    "in_buckets",
    "node_size",
]
