# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for histories of logs, blob stores, branches and schedulers."""
