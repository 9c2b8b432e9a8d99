"""QSGDMaxNorm (Vineeth S, 2021): its claims, and the studies that only it needs."""
