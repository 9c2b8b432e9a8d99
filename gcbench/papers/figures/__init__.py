"""Figures of tables, of studies, and of everything that ran."""
