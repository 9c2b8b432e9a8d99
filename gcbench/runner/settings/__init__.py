"""The keys of a configuration: what each means, its range, its default, and what it is for.

One model for the keys of each group of conf/. Mistakes are reported before torch is imported.
"""
