# SPDX-License-Identifier: Apache-2.0
"""Which open segment a record goes to: the schemes of the literature and one of our own, one file each.

| scheme | of |
|---|---|
| `Mixed` | one open segment for all, as in a log without a placement ("NoSep") |
| `UserAndSurvivors` | one for the user, one for survivors ("SepGC") |
| `MultiLog` | Stoica and Ailamaki, VLDB 2013 |
| `SFS` | Min, Kim, Cho, Lee and Eom, FAST 2012 |
| `DAC` | Chiang, Lee and Chang, Software: Practice and Experience 1999 |
| `FADaC` | Kremer and Brinkmann, SYSTOR 2019 |
| `WARCIP` | Yang, Pei and Yang, SYSTOR 2019 |
| `SepBIT` | Wang, Li, Lee, Ouyang, Shi and Huang, FAST 2022 |
| `ByLifetime` | ours: it knows of times to live, too |
"""
