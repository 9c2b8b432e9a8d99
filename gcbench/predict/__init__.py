"""What a step takes on clusters that nobody has here: the command `gcbench predict`."""
