"""What scripts share, and no user of gcbench calls."""
