"""The track: whether a method of others wins, by rules that are the same for all."""
