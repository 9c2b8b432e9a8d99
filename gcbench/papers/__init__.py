"""What was done with the instrument: the papers' tables, claims and studies beside our runs."""

PAPERS = {
    "qsgd": "QSGD (Alistarh et al., NeurIPS 2017)",
    "powersgd": "PowerSGD (Vogels et al., NeurIPS 2019)",
    "orq": "ORQ and BinGrad (Xu et al., 2020)",
    "maxnorm": "QSGDMaxNorm (Vineeth S, 2021)",
    "ecqsgd": "ECQ-SGD (Wu et al., ICML 2018)",
    "modern": "Later papers and measurements (2025 and 2026)",
}
