"""Timing of methods: the command `gcbench bench`."""
