"""The runner: one command trains, counts, records and reports."""
