# SPDX-License-Identifier: Apache-2.0
"""The conformance suites of policies, fences and needs, and views to try them on."""
