"""ORQ and BinGrad (Xu et al., 2020): its claims, and the studies that only it needs."""
