"""The only package that issues collectives."""

from gcbench.comm.collectives import Clock, Comm
from gcbench.comm.control import Control, LocalControl, ProcessGroupControl
from gcbench.comm.ddp import WholeGradient, hook_buckets
from gcbench.comm.emulation import EmulatedTransport
from gcbench.comm.fsdp import FlatGradient
from gcbench.comm.meter import Meter
from gcbench.comm.network import Link
from gcbench.comm.nodes import Nodes, node_size
from gcbench.comm.transport import (
    GlooTransport,
    MirrorTransport,
    NcclTransport,
    Transport,
    transport_of,
)

__all__ = [
    "Clock",
    "Comm",
    "Control",
    "EmulatedTransport",
    "FlatGradient",
    "GlooTransport",
    "Link",
    "LocalControl",
    "Meter",
    "MirrorTransport",
    "NcclTransport",
    "Nodes",
    "ProcessGroupControl",
    "Transport",
    "WholeGradient",
    "hook_buckets",
    "node_size",
    "transport_of",
]
