"""Measurements for the papers' figures, tables and claims that no training run provides.

Each study has its own file.
"""
