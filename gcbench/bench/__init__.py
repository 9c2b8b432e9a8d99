"""How fast methods are: the command `gcbench bench`."""
