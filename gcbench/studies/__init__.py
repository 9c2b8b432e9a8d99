"""Measurements that the papers' figures, tables and claims ask for and that no training run
answers, one file each."""
