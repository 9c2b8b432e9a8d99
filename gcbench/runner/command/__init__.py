"""The command `gcbench`: runs, sweeps, and the table of subcommands."""
