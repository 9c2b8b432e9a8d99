"""Training: the workers' gradients `[w, ...]` are computed, aggregated and applied."""
