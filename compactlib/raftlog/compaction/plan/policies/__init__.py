# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the library, one a file; the contract is `compactlib.raftlog.compaction.plan.policy`.

| policy | groups | use it when |
| --- | --- | --- |
| `DropDead` | nothing: only wholly dead segments go | copying is not worth anything to you now |
| `SeedPolicy` | neighbours that fit into one segment; one alone if more than half of it can go | the default |
| `RaPolicy` | neighbours that are each under half live | you want what RabbitMQ Ra does |
| `CostPolicy` | neighbours whose rewrite pays: bytes copied per byte freed | writing costs you more than space |
"""
