# SPDX-License-Identifier: Apache-2.0
"""Placements of the literature, and the log for them (`log.py`), for `lab_truth.py`.

| scheme | of |
|---|---|
| `FADaC` | Kremer and Brinkmann, SYSTOR 2019 |
| `MultiLog` | Stoica and Ailamaki, VLDB 2013 |
| `SFS` | Min, Kim, Cho, Lee and Eom, FAST 2012 |
| `DAC` | Chiang, Lee and Chang, Software: Practice and Experience 1999 |
| `WARCIP` | Yang, Pei and Yang, SYSTOR 2019 |
| `SepBIT` | Wang, Li, Lee, Ouyang, Shi and Huang, FAST 2022 |
"""
