# SPDX-License-Identifier: Apache-2.0
"""Ready hosts: transfers of snapshots, and the election of the catalog's coordinator by a log."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.hosting.log_election import LogElection as LogElection
    from compactlib.hosting.transfer.sending import SnapshotClient as SnapshotClient
    from compactlib.hosting.transfer.serving import SnapshotServer as SnapshotServer
else:
    offer(__name__, {
        "compactlib.hosting.log_election": "LogElection",
        "compactlib.hosting.transfer.sending": "SnapshotClient",
        "compactlib.hosting.transfer.serving": "SnapshotServer",
    })
