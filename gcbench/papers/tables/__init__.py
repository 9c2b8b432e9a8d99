"""The tables of conf/table: their rows, the runs of each, and the reports of them."""
