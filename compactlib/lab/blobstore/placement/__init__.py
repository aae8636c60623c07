# SPDX-License-Identifier: Apache-2.0
"""Which open segment a record goes to: three schemes of the literature and one of our own, one file each.

| scheme | of |
|---|---|
| `Mixed` | one open segment for all, as in a log without a placement ("NoSep") |
| `UserAndSurvivors` | one for the user, one for survivors ("SepGC") |
| `FADaC` | Kremer and Brinkmann, SYSTOR 2019 |
| `ByLifetime` | ours: it knows of times to live, too |
"""
