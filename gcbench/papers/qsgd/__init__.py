"""QSGD (Alistarh et al., NeurIPS 2017): its claims, and the studies that only it needs."""
