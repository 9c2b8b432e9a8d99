"""The claims of Later papers and measurements (2025 and 2026)."""

from gcbench.papers.claims.claim import Claim
from gcbench.papers.claims.comparisons import each, falls, rises, rows, study

of_mse = study("turboquant", "of_mse", tables=["normal", "cubes"])
worst_of_mse = study("turboquant", "worst_of_mse", tables=["normal", "cubes"])
vnmse = study("turboquant", "vnmse", tables=["normal", "cubes"])
measured_ratio = study("diloco_measured", "naive_ratio")
grid_ratio = study("links/grid", "ratio")
gpt = rows("modern/gpt", measure="loss", budgets=["cpu"])
ring_error = study("ring_error", "of_first")

CLAIMS = [
    Claim(
        "modern-01-biased-eden",
        where=(
            "Ben-Basat et al., A Note on TurboQuant and the Earlier DRIVE/EDEN Line of Work "
            "(arXiv 2604.18555), abstract"
        ),
        text=(
            "Biased EDEN is more accurate than TurboQuant_mse, which is EDEN with the scale S = 1 "
            "and approaches it for large dimensions."
        ),
        expect=(
            "lower vNMSE with 1 to 4 bits in dimension 128, and for no vector a higher one, up to "
            "rounding"
        ),
        needs="cpu",
        holds=[
            each(of_mse.biased_1, of_mse.biased_2, of_mse.biased_3, of_mse.biased_4) < 1,
            each(
                worst_of_mse.biased_1,
                worst_of_mse.biased_2,
                worst_of_mse.biased_3,
                worst_of_mse.biased_4,
            )
            <= 1.00001,
        ],
    ),
    Claim(
        "modern-02-eden-qjl",
        where="Ben-Basat et al. (arXiv 2604.18555), abstract, point 2",
        text=(
            "Unbiased EDEN of one bit has a lower error than QJL, the one unbiased bit of "
            "TurboQuant_prod."
        ),
        expect="vNMSE of about pi/2 - 1 = 0.57 against pi/2 = 1.57 or so",
        needs="cpu",
        holds=[
            2 * vnmse.unbiased_1 < vnmse.prod_1,
        ],
    ),
    Claim(
        "modern-03-eden-two-stages",
        where="Ben-Basat et al. (arXiv 2604.18555), abstract, point 3",
        text=(
            "Unbiased EDEN of b bits has a lower error than b - 1 biased bits with one unbiased "
            "bit for what these leave, as in TurboQuant_prod, often by more than a bit: EDEN of 2 "
            "bits beats TurboQuant_prod of 3."
        ),
        expect=(
            "lower vNMSE with 2, 3 and 4 bits, also if EDEN's bit takes the place of QJL's in the "
            "second stage; EDEN of b bits beats b + 1"
        ),
        needs="cpu",
        holds=[
            rises(vnmse.unbiased_2, vnmse.chain_2, vnmse.prod_2),
            rises(vnmse.unbiased_3, vnmse.chain_3, vnmse.prod_3),
            rises(vnmse.unbiased_4, vnmse.chain_4, vnmse.prod_4),
            vnmse.unbiased_2 < vnmse.prod_3,
            vnmse.unbiased_3 < vnmse.prod_4,
        ],
    ),
    Claim(
        "modern-04-diloco-measured",
        where="Adnan082/diloco-measured (2026), README, the headline result",
        text=(
            "On four GPUs joined at 50 Mbit/s to 5 Gbit/s, with 1 to 128 local steps, measured "
            "compute utilization of DiLoCo is 1.08 to 1.92 times below the analytic model at all "
            "16 points."
        ),
        expect="their steps take longer than their analytic model says, at all points",
        caution=(
            "Their model lets the gradient cross a link once, where a ring of four workers takes "
            "1.5 times as long: that is most of the factor. The step's own work and the rate of "
            "the link are theirs, as measured. With H = 128 their 180 timed steps have one "
            "exchange, which their model counts as 1.4; here they count as they happened."
        ),
        input="their measured steps and their analytic model",
        needs="cpu",
        holds=[
            measured_ratio[f"{link}, H = {h}"] > 1
            for link in ("50mbit", "200mbit", "1000mbit", "5000mbit")
            for h in (1, 8, 32, 128)
        ],
    ),
    Claim(
        "modern-05-diloco-grid",
        where="Adnan082/diloco-measured (2026), the same 16 points on hosts of our own",
        text=(
            "Measured DiLoCo underperforms models of its time at all of H = 1, 8, 32, 128 and 50 "
            "Mbit/s to 5 Gbit/s."
        ),
        expect="here, too, a step takes longer than `gcbench predict` says at all points",
        caution=(
            "Two hosts of one core each, which scripts/netlab joins, and 2.2 million parameters."
        ),
        needs="cpu",
        holds=[
            grid_ratio[f"2 x {link}, H = {h}"] > 1
            for link in ("50mbit", "200mbit", "1gbit", "5gbit")
            for h in (1, 8, 32, 128)
        ],
    ),
    Claim(
        "modern-06-muloco",
        where="Therien et al., MuLoCo (arXiv 2505.23725v2), abstract",
        text=(
            "MuLoCo, DiLoCo with Muon as the inner optimizer, reaches a lower loss than DiLoCo, "
            "and for K > 2 workers also relative to their data-parallel baselines."
        ),
        expect=(
            "with K = 4 and H = 30: loss(muloco) < loss(diloco), and the gap to Muon is smaller "
            "than that of DiLoCo to AdamW"
        ),
        caution=(
            "A GPT of 0.66 million parameters in 27 rounds, where the paper tunes each of 150 "
            "million and more in hundreds. DiLoCo's outer rate is the best of five, MuLoCo's that "
            "of its authors; AdamW's and Muon's are those without local steps."
        ),
        needs="short",
        holds=[
            gpt.muloco_30 < gpt.diloco_30,
            gpt.muloco_30 - gpt.muon < gpt.diloco_30 - gpt.none,
        ],
    ),
    Claim(
        "modern-07-sparseloco",
        where="Sarfi et al., SparseLoCo (arXiv 2508.15706), abstract and table 1",
        text=(
            "SparseLoCo, with 1 to 3 % of the values in 2 bits, outperforms full-precision DiLoCo "
            "for H = 15 to 250."
        ),
        expect="loss(sparseloco) <= loss(diloco) with H = 15 and 30",
        caution=(
            "54 and 27 rounds. DiLoCo's outer rate is the best of five for H = 30 and of three "
            "for H = 15, SparseLoCo's the best of four for H = 30. SparseLoCo has half of AdamW's "
            "rate, the best for its code without local steps."
        ),
        needs="short",
        holds=[
            gpt.sparseloco_15 <= gpt.diloco_15,
            gpt.sparseloco_30 <= gpt.diloco_30,
        ],
    ),
    Claim(
        "modern-08-muloco-2bit",
        where="Therien et al., MuLoCo (arXiv 2505.23725v1), abstract and figure 1",
        text=(
            "With Muon as the inner optimizer and error feedback, the difference can be sent in 2 "
            "bits with next to no degradation, and beats DiLoCo in full precision."
        ),
        expect=(
            "with K = 4 and H = 30: loss(2 bits) <= loss(32 bits) within noise, and < loss(DiLoCo)"
        ),
        caution=(
            "The code is EDEN's biased one, not the authors' statistical quantization of a "
            "tensor; the residual decays by 0.9, as theirs."
        ),
        needs="short",
        holds=[
            gpt.muloco_30_2bit <= gpt.muloco_30,
            gpt.muloco_30_2bit < gpt.diloco_30,
        ],
    ),
    Claim(
        "modern-09-formats-in-a-ring",
        where="Han et al., DynamiQ (arXiv 2602.08923), evaluation of vNMSE",
        text="In a multi-hop all-reduce MXFP4 errs more than MXFP6, and MXFP6 more than MXFP8.",
        expect=(
            "vNMSE of the mean of recorded gradients in this order from 2 to 16 workers, relative "
            "to MXFP8's of the same gradients"
        ),
        caution=(
            "Gradients of ResNet-20; workers are those of consecutive steps. MXFP6 is e2m3 and "
            "e3m2; the first has as many bits of mantissa as MXFP8, e4m3, and errs only 2 to 12 % "
            "more."
        ),
        needs="cpu",
        holds=[
            falls(
                ring_error[f"mxfp4 exchange=ring, W={workers}"],
                each(
                    ring_error[f"mxfp6 format=e3m2 exchange=ring, W={workers}"],
                    ring_error[f"mxfp6 exchange=ring, W={workers}"],
                ),
                1,
            )
            for workers in (2, 4, 8, 16)
        ],
    ),
    Claim(
        "modern-10-five-bits",
        where="Han et al., DynamiQ (arXiv 2602.08923), evaluation of vNMSE",
        text=(
            "Five bits per value suffice for a lower vNMSE than MXFP8's over the hops of an "
            "all-reduce."
        ),
        expect="vNMSE of a 5-bit code below MXFP8's of the same gradients with 2 to 16 workers",
        caution=(
            "DynamiQ's code, with bits by group and correlated rounding, is not here. EDEN of 5 "
            "bits, the best code here that is unbiased, stands for it; MXFP8 rounds to nearest."
        ),
        needs="cpu",
        holds=[
            ring_error[f"eden bits=5 exchange=ring, W={workers}"] < 1 for workers in (2, 4, 8, 16)
        ],
    ),
]
