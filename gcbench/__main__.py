"""`python -m gcbench`, for torchrun."""

from gcbench.cli import main

main()
