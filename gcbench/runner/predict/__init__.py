"""Predicted times of steps on clusters: the command `gcbench predict`."""
