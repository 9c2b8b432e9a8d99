"""Pure functions on `[..., n]`: no state, no communication."""
