# SPDX-License-Identifier: Apache-2.0
"""Public traces, as they are published: requests to block devices, and to caches.

| layout | a line | times |
|---|---|---|
| `CLOUD_PHYSICS` | a header, then `version,time,op,size,lbn`, as libCacheSim ships it | seconds |
| `MSR_CAMBRIDGE` | `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime` (FAST 2008) | 100 nanoseconds |
| `ALIBABA` | `device_id,opcode,offset,length,timestamp` (github.com/alibaba/block-traces) | microseconds |
| `TENCENT` | `Timestamp,Offset,Size,IOType,VolumeID`, in sectors (USENIX ATC 2020) | seconds |
| `TwitterTrace` | `timestamp,key,key size,value size,client,operation,TTL` (github.com/twitter/cache-trace) | seconds |

Files are plain, or `.gz`; what is published as `.tgz` or `.zst` is unpacked first. Operations that share a time are
spread over its tick, see `traces`. A few requests are noted a little late: the time of a workload does not go back.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.lab.operations import DELETE, FOREVER, PUT, READ
from compactlib.lab.trace import Request, RowTrace, opened, tick_field

_SECTOR_BYTES = 512
_MAX_REQUEST_BYTES = 1 << 30


@attrs.frozen(kw_only=True)
class BlockLayout:
    """What a line of a block trace says.

    Attributes:
        name: of the traces.
        columns: what stands where; `time`, `op`, `offset` and `size` are read, and those of `volume`.
        kinds: what stands for a write and for a read.
        has_header: whether the first line is one, unless it is a request.
        volume: the columns that say together which device it is.
        units_per_second: of times.
        offset_bytes: what an offset counts.
        size_bytes: what a size counts.
        tick_seconds: how coarse times are.
    """

    name: str
    columns: tuple[str, ...]
    kinds: Mapping[str, int]
    has_header: bool = False
    volume: tuple[str, ...] = ()
    units_per_second: int = 1
    offset_bytes: int = 1
    size_bytes: int = 1
    tick_seconds: float = 0.0


CLOUD_PHYSICS = BlockLayout(name="cloudphysics", columns=("version", "time", "op", "size", "offset"), has_header=True,
                            kinds={"2a": PUT, "28": READ}, offset_bytes=_SECTOR_BYTES, tick_seconds=1.0)
MSR_CAMBRIDGE = BlockLayout(name="msr_cambridge", columns=("time", "host", "disk", "op", "offset", "size", "response"),
                            kinds={"Write": PUT, "Read": READ}, volume=("host", "disk"), units_per_second=10_000_000)
ALIBABA = BlockLayout(name="alibaba", columns=("device", "op", "offset", "size", "time"), volume=("device",),
                      kinds={"W": PUT, "R": READ}, units_per_second=1_000_000)
TENCENT = BlockLayout(name="tencent", columns=("time", "offset", "size", "op", "volume"), volume=("volume",),
                      kinds={"1": PUT, "0": READ}, offset_bytes=_SECTOR_BYTES, size_bytes=_SECTOR_BYTES,
                      tick_seconds=1.0)


@attrs.frozen
class BlockTrace(RowTrace):
    """A trace of block devices: each page that a request touches is a key, which a write puts and a read reads.

    Attributes:
        path: of the file.
        layout: how it is laid out: one of this module's, or your own.
        page_bytes: size of a page, a multiple of 512.
        volumes: the devices that count, as the trace has them (`src1/0` in one of MSR Cambridge); empty: all.
        tick_seconds: how coarse its times are; `None`: as the layout says.

    Raises:
        InvalidInput: the page's size or the tick is none, or `volumes` is one name and no collection.
    """

    layout: BlockLayout
    page_bytes: int = 4_096
    volumes: Collection[str] = ()
    tick_seconds: float | None = tick_field(default=None)

    def __attrs_post_init__(self) -> None:
        if self.page_bytes < _SECTOR_BYTES or self.page_bytes % _SECTOR_BYTES:
            raise InvalidInput(f"page_bytes is {self.page_bytes}; give a multiple of 512, the size of a block")

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of the layout."""
        return self.layout.name

    @property
    def _tick(self) -> float:
        return self.layout.tick_seconds if self.tick_seconds is None else self.tick_seconds

    @property
    def _schema(self) -> str:
        return f"{','.join(self.layout.columns)} with an op of {', '.join(self.layout.kinds)}"

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for place, (number, row) in enumerate(_lines(self.path, self.layout.columns)):
            # A part of a trace begins with a request.
            if place or not self.layout.has_header or row["op"] in self.layout.kinds:
                yield number, row

    def _request(self, row: Mapping[str, Any]) -> Request:
        layout = self.layout
        kind, time_ms = layout.kinds[row["op"]], round(float(row["time"]) * 1000 / layout.units_per_second)
        first, size = int(row["offset"]) * layout.offset_bytes, int(row["size"]) * layout.size_bytes
        if first < 0 or not 0 <= size <= _MAX_REQUEST_BYTES:
            raise ValueError("out of range")
        volume = "/".join(row[column] for column in layout.volume)
        pages = range(first // self.page_bytes, (first + max(size, 1) - 1) // self.page_bytes + 1)
        keys = [f"{volume}:{page}" if volume else str(page) for page in pages]
        return kind, keys if not self.volumes or volume in self.volumes else (), self.page_bytes, FOREVER, time_ms

    def __str__(self) -> str:
        return f"{self.name}({self.path}, page_bytes={self.page_bytes})"


_CACHE_COLUMNS = ("time", "key", "key_size", "value_size", "client", "op", "ttl")
_CACHE_KINDS = {"get": READ, "gets": READ, "delete": DELETE,
                **dict.fromkeys(("set", "add", "replace", "cas", "append", "prepend", "incr", "decr"), PUT)}


@attrs.frozen
class TwitterTrace(RowTrace):
    """A trace of one of Twitter's caches. A write of any kind puts its key, as if it had been there; `get` reads it.

    A record's size is that of key and value.

    Attributes:
        path: of the file.
        tick_seconds: how coarse its times are: they are whole seconds.

    Raises:
        InvalidInput: that is no time.
    """

    name: ClassVar[str] = "twitter"
    _schema = f"{','.join(_CACHE_COLUMNS)} with an op of {', '.join(_CACHE_KINDS)}"

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        return _lines(self.path, _CACHE_COLUMNS)

    def _request(self, row: Mapping[str, Any]) -> Request:
        kind = _CACHE_KINDS[row["op"]]
        size, life_ms = int(row["key_size"]) + int(row["value_size"]), round(float(row["ttl"]) * 1000)
        if size < 1 or life_ms < 0:
            raise ValueError("below zero")
        return (kind, (row["key"],), 0 if kind == DELETE else size, life_ms if kind == PUT and life_ms else FOREVER,
                round(float(row["time"]) * 1000))


def _lines(path: str, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The lines with their numbers, column by column; what is missing of one is empty."""
    with opened(path) as lines:
        # A quote is a character as any other: it may stand in a key.
        rows = csv.DictReader(lines, columns, restkey="more", restval="", quoting=csv.QUOTE_NONE)
        for row in rows:
            yield rows.line_num, row
