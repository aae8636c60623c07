"""What makes the manager look at a store: time, or somebody who asks."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from compactlib.blobstore.errors import UnknownTrigger


class Trigger(enum.Enum):
    """A way in which a store's turn can come. Without any, stores are compacted only by their host.

    `PERIODIC`: each store is checked when the manager starts, and then from time to time.
    `ADMIN`: a store is checked when `CompactionManager.request` asks for it, before all that is due by time.
    """

    PERIODIC = "periodic"
    ADMIN = "admin"


def parse_triggers(names: str | Iterable[str]) -> frozenset[Trigger]:
    """The triggers of these names; upper and lower case are the same. No names: no triggers.

    Args:
        names: names, or one text with commas between them.

    Raises:
        UnknownTrigger: there is none of this name.
    """
    listed = names.split(",") if isinstance(names, str) else list(names)
    found = set()
    for name in listed:
        folded = name.strip().lower()
        if not folded and isinstance(names, str):
            continue
        try:
            found.add(Trigger(folded))
        except ValueError:
            known = ", ".join(trigger.value for trigger in Trigger)
            raise UnknownTrigger(f"there is no trigger {name!r}; take some of {known}, or none", name=name,
                                 known=known) from None
    return frozenset(found)
