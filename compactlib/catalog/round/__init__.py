# SPDX-License-Identifier: Apache-2.0
"""One round of the cluster, without I/O: node, participant, coordinator, election, messages."""
