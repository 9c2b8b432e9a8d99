"""Measurements for the papers' figures, tables and claims that no training run provides."""
