# SPDX-License-Identifier: Apache-2.0
"""Checks the options of `spark.read`, which come as text; what the data sources have in common."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TypeVar

from compactlib.errors import InvalidInput
from compactlib.files.disk import local_path
from compactlib.spark.sources.neighbours import DEFAULT_PARTITION_BYTES

_T = TypeVar("_T")


def given_options(options: Mapping[str, str], known: Collection[str], what: str | None) -> dict[str, str]:
    """The options by their names in lower case.

    Args:
        options: as Spark gives them.
        known: the names there are; `path` among them.
        what: what is opened, for the message: "log", "store"; `None` if it may come without a path.

    Raises:
        InvalidInput: one is unknown, or `path` is missing.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "paths" in given:
        raise InvalidInput(f"the paths {given['paths']:.200}; load each by itself, and unite the DataFrames")
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise InvalidInput(f"unknown option {unknown[0]!r}; this source has {', '.join(sorted(known))}")
    if what is not None and not given.get("path"):
        raise InvalidInput(f"which {what}? Give its folder: spark.read.format(...).load(folder)")
    return given


def folder_of(given: Mapping[str, str]) -> str:
    """The folder that `path` names, absolute."""
    return local_path(given["path"])


def one_of(given: Mapping[str, str], name: str, meanings: Mapping[str, _T]) -> _T:
    """What the option's text means; the first of `meanings` is the default.

    Raises:
        InvalidInput: it is none of them.
    """
    text = given.get(name, next(iter(meanings)))
    if text.lower() not in meanings:
        raise InvalidInput(f"option {name!r} is {text!r}; it takes {' or '.join(meanings)}")
    return meanings[text.lower()]


def partition_bytes_of(given: Mapping[str, str]) -> int:
    """Up to which size neighbours share a partition.

    Raises:
        InvalidInput: it is no number of bytes.
    """
    text = given.get("partition_bytes", str(DEFAULT_PARTITION_BYTES))
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(f"option 'partition_bytes' is {text!r}; it takes a number of bytes")
    return int(text)


def seconds_of(given: Mapping[str, str], name: str) -> float | None:
    """A time in seconds since the epoch; `None` if it was not given.

    Raises:
        InvalidInput: it is no finite number.
    """
    text = given.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(f"option {name!r} is {text!r}; it takes seconds since the epoch")
    return value
