"""The checks that every method must pass: the tests run them on ours, `gcbench check` on yours."""
