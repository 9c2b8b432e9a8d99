"""Figures of tables, studies and everything that ran, as svg and png."""
