"""What was done with the instrument: the papers' tables, claims and studies beside our runs."""
