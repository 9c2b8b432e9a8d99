"""Times of methods: the command `gcbench bench`."""
