# SPDX-License-Identifier: Apache-2.0
"""A versioned schema catalog with a durable update log, whose history is cut once no node needs it (Apache Ignite 3).

Schema changes make versions, kept in an update log in a key-value store. A `CatalogService` offers the contract:
`view` is what is retained and what every node still needs of it, `plan` the highest version below which no node needs
anything, `compact` puts a snapshot in the place of what lies below, `reclaim` deletes what a cut has left behind.

>>> from compactlib.catalog import (ActiveTransactions, CatalogService, CreateSchema, CreateZone, HybridClock,
...                                 LocalNeeds, NodeId, Topology, UpdateLog)
>>> from compactlib.clock import ManualClock
>>> from compactlib.kv import MemoryStore
>>> service = CatalogService(UpdateLog(MemoryStore()), HybridClock(ManualClock(1000.0)))
>>> service.execute([CreateSchema("PUBLIC"), CreateZone("Z", partitions=4)]).version
1
>>> [service.execute([CreateSchema(f"S{number}")]).version for number in (2, 3)]
[2, 3]
>>> print(service.compact().reason)
0 nodes are known, so what is needed is unknown; give view() the topology and the reports, or connect() a source
>>> transactions = ActiveTransactions(lambda: service.history, service.clock)
>>> needs = LocalNeeds(NodeId("A"), lambda: service.history, transactions=transactions)
>>> plan = service.plan(view=service.view(reports=[needs.report()], topology=Topology.of("A"),
...                                       low_watermark=service.catalog(2).activation))
>>> print(plan.explain())
history is cut to version 2 (of 0 to 3): no node needs what lies below
  low watermark at 1001500 allows up to version 2 (of the coordinator)
>>> service.compact(plan).stats.before, service.history
(0, RetainedVersions(2 to 3))
"""

from compactlib._lazy import offer

offer(__name__)
