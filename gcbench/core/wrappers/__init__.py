"""Wrappers around methods, and the compressor that both make."""
