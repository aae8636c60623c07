# SPDX-License-Identifier: Apache-2.0
"""The conformance suites of `Service` and `AsyncService`."""
