"""The benchmark's models: plain modules, one family a file.

A factory takes `shape` (of one sample) and `outputs`, or `vocabulary`; each yaml in conf/model
names one.
"""
