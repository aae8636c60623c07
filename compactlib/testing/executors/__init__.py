# SPDX-License-Identifier: Apache-2.0
"""The conformance kit of `Executor`: tests that any executor inherits."""
