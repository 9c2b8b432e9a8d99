"""Compose and check a configuration.

This package does not import torch, so that help and error messages appear at once.
"""
