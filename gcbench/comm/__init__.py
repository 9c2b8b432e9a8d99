"""The only package that issues collectives."""

from gcbench.comm.collectives import Clock, Comm
from gcbench.comm.control import Control, LocalControl, ProcessGroupControl, gather_json
from gcbench.comm.ddp import Arrived, WholeGradient, hook_buckets
from gcbench.comm.emulation import EmulatedTransport
from gcbench.comm.fsdp import FlatGradient
from gcbench.comm.meter import Meter
from gcbench.comm.network import Link
from gcbench.comm.nodes import Nodes, node_size
from gcbench.comm.sparse import refuse_sparse_gradient, sparse_refusal
from gcbench.comm.transport import (
    GlooTransport,
    MirrorTransport,
    NcclTransport,
    Transport,
    transport_of,
)

__all__ = [
    "Arrived",
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
    "gather_json",
    "hook_buckets",
    "node_size",
    "refuse_sparse_gradient",
    "sparse_refusal",
    "transport_of",
]
