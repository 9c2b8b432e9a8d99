"""Ladders: how many times the tokens of dense training a method needs, by size and workers."""
