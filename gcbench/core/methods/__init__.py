"""Gradient-compression methods, one per file, all called through `aggregate`."""
