# SPDX-License-Identifier: Apache-2.0
"""A simulated scheduler with its workers and replicas."""
