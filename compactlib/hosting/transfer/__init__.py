# SPDX-License-Identifier: Apache-2.0
"""Transfers of snapshots over TCP, with asyncio: `SnapshotClient` on the leader, `SnapshotServer` on a follower.

The two state machines of `compactlib.raftlog.replication` decide everything; here are their sockets, their disk work
(in threads, so that the loop goes on) and their timers. A connection that breaks is opened again, and the transfer goes
on where it was.

There is no authentication but what `tls` brings: without it only loopback addresses are taken, unless `insecure=True`
says that every host of the network is trusted.
"""
