"""Entry point of `python -m gcbench`, which torchrun needs."""

import os
import sys

# Python puts the working directory, which may have other people's files, before all others.
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

from gcbench.cli import main  # noqa: E402

main()
