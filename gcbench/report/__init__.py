"""Results beside the papers' numbers. Reads files (or W&B runs) only, and imports no torch."""
