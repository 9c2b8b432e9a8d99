"""Results next to the papers' numbers, read from files or W&B runs. Most of it imports no torch."""
