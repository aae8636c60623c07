# SPDX-License-Identifier: Apache-2.0
"""The conformance suites of key-value stores, object stores and formats of ranges."""
