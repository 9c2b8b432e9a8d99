"""PowerSGD (Vogels et al., NeurIPS 2019): its claims, and the studies that only it needs."""
