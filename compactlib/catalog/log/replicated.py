# SPDX-License-Identifier: Apache-2.0
"""Commands of the catalog that a host replicates in logs of its own, as bytes (`docs/formats/catalog-log.md`).

>>> from compactlib.catalog.model.timestamp import timestamp
>>> command = encode_command(LowestTime(timestamp(1000)))
>>> is_command(command), is_command(b"a command of the host's")
(True, False)
>>> decode_command(command) == LowestTime(timestamp(1000))
True
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from compactlib._arguments import require_type
from compactlib.catalog.arguments import printed
from compactlib.catalog.errors import RecordDamaged
from compactlib.catalog.log.records import MAGIC, RecordType, fields_of, seal_fields, unseal
from compactlib.catalog.model.timestamp import Timestamp, checked_timestamp
from compactlib.errors import InvalidInput

_KEY = b"command"


def _is_name(_: object, __: object, value: str) -> None:
    printed("the node's name", value)


@attrs.frozen
class LowestTime:
    """In a partition's log: the lowest time that an active transaction may need.

    A replica that applies it calls `PublishedTimes.applied`, with the command's index.
    """

    time: Timestamp = attrs.field(converter=checked_timestamp)


@attrs.frozen
class Claim:
    """In the log of the metastore's group: this node leads it. The command's index is the term that it coordinates."""

    node: str = attrs.field(validator=_is_name)


ReplicatedCommand: TypeAlias = LowestTime | Claim
"""What a command can be."""


def encode_command(command: ReplicatedCommand) -> bytes:
    """The command as bytes.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(command, LowestTime):
        return seal_fields(_KEY, RecordType.PUBLISHED, {"time": command.time})
    require_type("command", command, Claim, "a LowestTime or a Claim")
    return seal_fields(_KEY, RecordType.TERM, {"node": command.node})


def is_command(data: bytes) -> bool:
    """Whether these bytes begin as a command does, and not as one of the host's own."""
    require_type("data", data, bytes, "bytes")
    return data.startswith(MAGIC)


def decode_command(data: bytes) -> ReplicatedCommand:
    """The command of these bytes.

    Raises:
        RecordDamaged: not what `encode_command` wrote.
        RecordTooNew: a later release wrote it.
    """
    require_type("data", data, bytes, "bytes")
    kind, payload = unseal(_KEY, data, RecordType.PUBLISHED, RecordType.TERM)
    try:
        return (LowestTime(*fields_of(_KEY, payload, "time")) if kind is RecordType.PUBLISHED
                else Claim(*fields_of(_KEY, payload, "node")))
    except InvalidInput as error:
        raise RecordDamaged(key=_KEY.decode(), offset=0, expected="a command", found=str(error)) from None


def lowest_time_in(payload: bytes) -> Timestamp | None:
    """The lowest time that a command publishes; `None` for every other command of the catalog's or of the host's.

    A replica that applies it calls `PublishedTimes.applied`, with the command's index.

    Raises:
        RecordDamaged: it is a damaged command of the catalog's.
    """
    command = decode_command(payload) if is_command(payload) else None
    return command.time if isinstance(command, LowestTime) else None
