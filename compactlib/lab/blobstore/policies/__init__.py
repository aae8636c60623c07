# SPDX-License-Identifier: Apache-2.0
"""Policies of blob stores that are results of the lab."""
