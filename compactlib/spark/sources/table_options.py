# SPDX-License-Identifier: Apache-2.0
"""The options of `spark.read`, which come as text: what the tables have in common, and how an option is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self

import attrs

from compactlib.errors import InvalidInput
from compactlib.files.disk import local_path

DEFAULT_PARTITION_BYTES: Final = 128 << 20
"""Up to which size neighbours share a partition; what `spark.sql.files.maxPartitionBytes` is by default."""


@attrs.frozen
class Option:
    """How the text of an option is read.

    Attributes:
        field: the field of the options that it gives.
        read: gives its value; raises `ValueError` if it has none.
        takes: what it takes, for the message.
    """

    field: str
    read: Callable[[str], Any]
    takes: str = ""


def one_of(field: str, meanings: Mapping[str, Any]) -> Option:
    """An option of a few words, in capitals or not."""
    def read(text: str) -> Any:
        if text.lower() not in meanings:
            raise ValueError
        return meanings[text.lower()]

    return Option(field, read, " or ".join(meanings))


def whole(field: str, takes: str, most: float = math.inf) -> Option:
    """An option that is a number of digits alone."""
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) > most:
            raise ValueError
        return int(text)

    return Option(field, read, takes)


def seconds(field: str) -> Option:
    """An option that is a time."""
    def read(text: str) -> float:
        if not math.isfinite(float(text)):
            raise ValueError
        return float(text)

    return Option(field, read, "seconds since the epoch")


def options_by_name(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case.

    Raises:
        InvalidInput: several paths were given.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "paths" in given:
        raise InvalidInput(f"the paths {given['paths']:.200}; load each by itself, and unite the DataFrames")
    return given


DAMAGED: Final = one_of("errors", {"fail": False, "column": True})
"""What becomes of damage, in logs and blob stores."""


@attrs.frozen(kw_only=True)
class TableOptions:
    """What a reader of any of the tables may ask for.

    Attributes:
        folder: where the table lies, absolute.
        payload: give the payloads; without, payload bytes are not even read (unless errors are asked for).
        partition_bytes: up to which size neighbouring parts share a partition.
        known: the options of this table beside these, by name.
        what: what is opened, for messages.
    """

    folder: str
    payload: bool = True
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    known: ClassVar[Mapping[str, Option]] = {}
    what: ClassVar[str]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """The options of `spark.read`, checked.

        Raises:
            InvalidInput: one is unknown, or has a value that it cannot have.
        """
        known = {"path": Option("folder", local_path), "payload": one_of("payload", {"true": True, "false": False}),
                 "partition_bytes": whole("partition_bytes", "a number of bytes"), **cls.known}
        given = options_by_name(options)
        if unknown := sorted(given.keys() - known.keys()):
            raise InvalidInput(f"unknown option {unknown[0]!r}; this source has {', '.join(sorted(known))}")
        if not given.get("path"):
            raise InvalidInput(f"which {cls.what}? Give its folder: spark.read.format(...).load(folder)")
        values: dict[str, Any] = {}
        for name, text in given.items():
            try:
                values[known[name].field] = known[name].read(text)
            except InvalidInput:
                raise
            except ValueError as error:
                raise InvalidInput(f"option {name!r} is {text!r}; it takes {known[name].takes}") from error
        return cls(**values)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and Spark SQL types of the columns, in order."""
        raise NotImplementedError
