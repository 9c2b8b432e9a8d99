"""Later papers and measurements (2025 and 2026): its claims, and the studies that only it needs."""
