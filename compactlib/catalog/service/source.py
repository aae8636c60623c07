# SPDX-License-Identifier: Apache-2.0
"""`ClusterSource`: where a service learns what the cluster needs, if its caller does not say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Assignments, NodeReport, Topology
from compactlib.kv import Condition


class ClusterSource(Protocol):
    """Asked for each view, and once more before a cut, in the order of its methods; may raise any `CompactlibError`.

    `LocalHost` is one.
    """

    def conditions(self) -> Sequence[Condition]:
        """States of keys of the log's store that must still hold when history is cut: epochs of the membership, ..."""

    def topology(self) -> Topology:
        """The membership, from where it is decided."""

    def reports(self) -> Sequence[NodeReport]:
        """The reports of the nodes, as many as there are; a plan names those that are missing, and cuts nothing."""

    def assignments(self) -> Assignments:
        """The stable assignments of all zones, from one moment."""

    def low_watermark(self) -> Timestamp | None:
        """This node's; `None` before the first one."""
