"""The only room that issues collectives."""

from gcbench.comm.buckets import in_buckets
from gcbench.comm.collectives import Clock, Comm
from gcbench.comm.control import Control, LocalControl, ProcessGroupControl
from gcbench.comm.emulation import Emulated
from gcbench.comm.meter import Meter
from gcbench.comm.network import Link
from gcbench.comm.nodes import Nodes, node_size
from gcbench.comm.transport import GlooTransport, NcclTransport, Transport

__all__ = [
    "Clock",
    "Comm",
    "Control",
    "Emulated",
    "GlooTransport",
    "Link",
    "LocalControl",
    "Meter",
    "NcclTransport",
    "Nodes",
    "ProcessGroupControl",
    "Transport",
    "in_buckets",
    "node_size",
]
