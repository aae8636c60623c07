# SPDX-License-Identifier: Apache-2.0
"""Placements of the literature that `lab_truth.py` holds the lab against; the lab itself keeps the better ones."""
