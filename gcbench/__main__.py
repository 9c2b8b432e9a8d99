"""Entry point of the command `gcbench`, and of `python -m gcbench`, which torchrun needs."""

from __future__ import annotations

import os
import sys

# Python puts the working directory, which may have other people's files, before all others.
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch loads; launch.local says why

import signal  # noqa: E402

INTERRUPTED = 130


def main() -> None:
    """Run `gcbench`; Ctrl-C ends it without a traceback, also while it imports modules."""
    try:
        heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if heeds:  # an import may swallow a KeyboardInterrupt, or print it
            signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
        from gcbench.cli import main as command

        if heeds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
