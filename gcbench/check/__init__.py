"""The duties of every method. The tests hold ours to them, `gcbench check` anybody's."""
