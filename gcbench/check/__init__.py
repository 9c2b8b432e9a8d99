"""What every method owes its callers. The tests hold ours to it, `gcbench check` anybody's."""
