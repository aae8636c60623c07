"""The policies that come with the library, one a file; the contract is `compactlib.raftlog.compaction.plan.policy`.

| policy | groups | use it when |
| --- | --- | --- |
| `DropDead` | nothing: only wholly dead segments go | copying is not worth anything to you now |
| `SeedPolicy` | neighbours that fit into one segment; one alone if more than half of it can go | the default |
| `RaPolicy` | neighbours that are each under half live | you want what RabbitMQ Ra does |
| `CostPolicy` | neighbours whose rewrite pays: bytes copied per byte freed | writing costs you more than space |
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.raftlog.compaction.plan.policies.cost import CostPolicy
    from compactlib.raftlog.compaction.plan.policies.drop import DropDead
    from compactlib.raftlog.compaction.plan.policies.ra import RaPolicy
    from compactlib.raftlog.compaction.plan.policies.seed import SeedPolicy

__all__ = ["CostPolicy", "DropDead", "RaPolicy", "SeedPolicy"]

load_lazily(__name__, {
    ".cost": ("CostPolicy",),
    ".drop": ("DropDead",),
    ".ra": ("RaPolicy",),
    ".seed": ("SeedPolicy",),
})
