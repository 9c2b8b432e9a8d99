"""ECQ-SGD (Wu et al., ICML 2018): its claims, and the studies that only it needs."""
