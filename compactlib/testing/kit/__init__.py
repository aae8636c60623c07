# SPDX-License-Identifier: Apache-2.0
"""The common parts of the conformance kits: reports of a breach, Hypothesis examples, actors."""
