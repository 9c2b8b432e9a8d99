"""A run: gradients `[w, ...]` of the workers, aggregated, applied."""
