# SPDX-License-Identifier: Apache-2.0
"""Results of a published simulator, to compare the lab with: write amplification, deterministic.

Figures of the trace-driven simulator that accompanies Q. Wang, J. Li, P. P. C. Lee, T. Ouyang, C. Shi, L. Huang,
"Separating Data via Block Invalidation Time Inference for Write Amplification Reduction in Log-Structured Storage",
FAST 2022 (https://github.com/fallfish/sepbit), on the loads of `lab_truth.py`. Options of the simulator: one open
segment for `mixed`, two for `user_and_survivors`, six for the others; everything else as published.
"""

from __future__ import annotations

from fixed_number import Preference

SCHEMES = ("mixed", "user_and_survivors", "multi_log", "sfs", "warcip", "dac", "fadac", "sepbit")
"""In the order of the columns' rows; the simulator's own names: NoSep, SepGC, MultiLog, SFS, WARCIP, DAC, FADaC,
SepBIT."""

SYNTHETIC: dict[tuple[str, Preference], tuple[float, ...]] = {
    ("zipf 0.8", "dead share"): (3.3386, 3.2976, 3.1261, 2.9934, 3.2223, 2.9811, 2.9237, 3.0596),
    ("zipf 0.8", "root benefit"): (3.0516, 2.9865, 2.7507, 2.6048, 2.8025, 2.5534, 2.5162, 2.7453),
    ("zipf 1.0", "dead share"): (3.2131, 3.1487, 2.6575, 2.4623, 2.9709, 2.4893, 2.3977, 2.5885),
    ("zipf 1.0", "root benefit"): (2.4707, 2.4014, 2.1563, 2.0378, 2.2379, 1.9429, 1.8693, 2.1216),
    ("hot/cold", "dead share"): (3.2774, 3.2587, 3.2634, 3.2123, 3.2137, 3.2486, 3.2526, 3.1688),
    ("hot/cold", "root benefit"): (2.9282, 2.8918, 2.9158, 2.7055, 2.7738, 2.7072, 2.7305, 2.6987),
    ("uniform", "dead share"): (3.1252, 3.1252, 3.1238, 3.1215, 3.1215, 3.1245, 3.1223, 3.1262),
    ("uniform", "root benefit"): (3.1384, 3.1377, 3.1340, 3.1347, 3.1369, 3.1378, 3.1369, 3.1392),
}
"""60,000 pages written in order, then 600,000 overwrites; a collection of at most 8 victims, each 15 % dead, once more
than 15 % are dead; 64 pages a segment. By load and preference."""

TRACE: dict[tuple[float, int, Preference], tuple[float, ...]] = {
    (0.10, 64, "dead share"): (1.1180, 1.1069, 1.1015, 1.1045, 1.1012, 1.0842, 1.1029, 1.1074),
    (0.10, 64, "root benefit"): (1.1140, 1.1095, 1.1116, 1.1172, 1.1053, 1.0963, 1.1151, 1.1098),
    (0.10, 256, "dead share"): (1.2073, 1.1858, 1.2084, 1.2021, 1.1889, 1.1891, 1.1865, 1.1891),
    (0.10, 256, "root benefit"): (1.2211, 1.1946, 1.2271, 1.2102, 1.1953, 1.2086, 1.1972, 1.2112),
    (0.15, 64, "dead share"): (1.0414, 1.0390, 1.0371, 1.0318, 1.0350, 1.0199, 1.0331, 1.0288),
    (0.15, 64, "root benefit"): (1.0449, 1.0427, 1.0396, 1.0320, 1.0423, 1.0219, 1.0330, 1.0305),
    (0.15, 256, "dead share"): (1.0674, 1.0617, 1.0567, 1.0568, 1.0525, 1.0444, 1.0619, 1.0545),
    (0.15, 256, "root benefit"): (1.0769, 1.0716, 1.0642, 1.0670, 1.0645, 1.0494, 1.0733, 1.0627),
}
"""The CloudPhysics trace of libCacheSim, 656,169 writes of pages of 4 KiB in 66,898 requests; collections of at most 16
victims. By the dead part that starts one (and that each victim has), pages a segment, and preference."""

TRACE_SEGMENTS: dict[tuple[float, int], tuple[float, float, float, float]] = {
    (0.05, 64): (1.8372, 1.7590, 1.7168, 1.7578),
    (0.05, 256): (2.3229, 2.2325, 2.1800, 2.2693),
    (0.10, 64): (1.1180, 1.1069, 1.1063, 1.1664),
    (0.10, 256): (1.2073, 1.1858, 1.1826, 1.2601),
    (0.15, 64): (1.0414, 1.0390, 1.0387, 1.0741),
    (0.15, 256): (1.0674, 1.0617, 1.0594, 1.1242),
    (0.25, 64): (1.0106, 1.0093, 1.0099, 1.0234),
    (0.25, 256): (1.0188, 1.0174, 1.0178, 1.0306),
}
"""The same trace by dead share, mixed and with survivors apart; then with survivors' segments closed after each
collection, by valid bytes and by LFS's benefit."""

FIXED: dict[tuple[str, float], tuple[float, float]] = {
    ("uniform", 0.6): (1.35916, 1.41293), ("uniform", 0.8): (2.36594, 2.56086),
    ("hot/cold 10/90", 0.6): (1.19570, 1.24198), ("hot/cold 10/90", 0.8): (2.16113, 1.71472),
    ("zipf 1.0", 0.6): (1.44116, 1.47941), ("zipf 1.0", 0.8): (2.32441, 2.25337),
}
"""A log of a fixed size, 64 pages a segment: 60,000 pages, 300,000 overwrites by `compactlib.lab`'s own workloads, with
this part of it live; collections that free 8 segments, copied in the order of preference, survivors' segments closed
after each. By `Greedy` and by `CostBenefit`."""
