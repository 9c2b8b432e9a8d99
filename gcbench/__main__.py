"""Entry point of `python -m gcbench`, which torchrun needs."""

from gcbench.cli import main

main()
