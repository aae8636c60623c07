# SPDX-License-Identifier: Apache-2.0
"""Experiments, their measures and reports."""
