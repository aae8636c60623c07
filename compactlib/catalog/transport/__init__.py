# SPDX-License-Identifier: Apache-2.0
"""Transports for messages between nodes (TCP, in memory), and what runs a node: timers, threads, sockets."""
