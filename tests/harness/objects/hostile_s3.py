# SPDX-License-Identifier: Apache-2.0
"""A small S3 server on loopback that misbehaves on purpose, over memory; it has the part of S3 that obstore needs.

Its first manner is that of s3rver 3.7.1 (and of rclone's `serve s3`): it ignores `If-None-Match: *` and overwrites.
s3rver itself is in another registry than the other packages, so its test runs only where it is installed
(`tests.harness.objects.s3_servers`), and this server replaces it everywhere else.
"""

from __future__ import annotations

import enum
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Manner(enum.Enum):
    """How it misbehaves."""

    OVERWRITES = "takes a conditional put for a put"
    REFUSES_CONDITIONS = "answers a conditional put with 501 Not Implemented"
    CONFLICTS = "answers a conditional put with 409 Conflict, as S3 does while another request for the key is under way"
    DAMAGES = "gives out bytes that are not those that were put"
    LISTS_IN_DISORDER = "lists in no order"
    KEEPS_THE_LAST = "answers a request to delete several with an error for the last of them"
    LOSES_THE_FIRST_ANSWER = "carries the first put out, and answers it with an internal error"
    FAILS_TO_LIST = "answers a listing with an internal error"
    DENIES_DELETES = "answers a delete with 403 Access Denied"
    DENIES_CREATES = "answers a conditional put with 403 Access Denied"


@contextmanager
def hostile(manner: Manner) -> Iterator[str]:
    """Run the server for the block; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(manner))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(manner: Manner) -> type[BaseHTTPRequestHandler]:
    objects: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("If-None-Match") and manner is Manner.REFUSES_CONDITIONS:
                self.fail(501, "NotImplemented")
            elif self.headers.get("If-None-Match") and manner is Manner.DENIES_CREATES:
                self.fail(403, "AccessDenied")
            elif (manner is Manner.CONFLICTS and self.headers.get("If-None-Match")
                  and "/compactlib-probe/" not in self.key):
                self.fail(409, "ConditionalRequestConflict")
            elif manner is not Manner.OVERWRITES and self.headers.get("If-None-Match") and self.key in objects:
                self.fail(412, "PreconditionFailed")
            else:
                is_first = not objects
                objects[self.key] = body
                if manner is Manner.LOSES_THE_FIRST_ANSWER and is_first:
                    self.fail(500, "InternalError")
                else:
                    self.answer(200, b"", {"ETag": _tag(body)})

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            if "list-type" in query:
                self.list_objects(query.get("prefix", [""])[0], query.get("start-after", [""])[0])
            elif self.key not in objects:
                self.fail(404, "NoSuchKey")
            else:
                self.give(objects[self.key])

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            objects.pop(self.key, None)
            self.answer(204, b"", {})

        def do_POST(self) -> None:
            # A multi-object delete; obstore sends every delete so.
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if manner is Manner.DENIES_DELETES:
                self.fail(403, "AccessDenied")
                return
            keys = [part.split("</Key>")[0] for part in body.split("<Key>")[1:]]
            kept = keys.pop() if manner is Manner.KEEPS_THE_LAST and len(keys) > 1 else None
            for key in keys:
                objects.pop(self.key + key, None)
            told = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            if kept is not None:
                told += f"<Error><Key>{kept}</Key><Code>InternalError</Code><Message>try again</Message></Error>"
            self.answer(200, f"<DeleteResult>{told}</DeleteResult>".encode(), {"Content-Type": "application/xml"})

        def give(self, data: bytes) -> None:
            tag = {"ETag": _tag(data), "Last-Modified": formatdate(0, usegmt=True)}
            if manner is Manner.DAMAGES and data:
                data = data[:-1] + bytes([data[-1] ^ 1])
            wanted = self.headers.get("Range", "")
            if not wanted:
                self.answer(200, data, tag)
                return
            first, last = (int(text) for text in wanted.removeprefix("bytes=").split("-"))
            part = data[first:last + 1]
            self.answer(206, part, {**tag, "Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"})

        def list_objects(self, prefix: str, after: str) -> None:
            if manner is Manner.FAILS_TO_LIST:
                self.fail(500, "InternalError")
                return
            bucket = self.key
            keys = sorted(key.removeprefix(bucket) for key in objects if key.startswith(bucket + prefix))
            keys = [key for key in keys if key > after]
            if manner is Manner.LISTS_IN_DISORDER:
                keys.reverse()
            found = "".join(f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[bucket + key])}</Size>"
                            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
                            for key in keys)
            self.answer(200, f"<ListBucketResult>{found}<IsTruncated>false</IsTruncated></ListBucketResult>".encode(),
                        {"Content-Type": "application/xml"})

        @property
        def key(self) -> str:
            """Bucket and key; a bucket alone ends with a slash."""
            path = unquote(urlsplit(self.path).path)[1:]
            return path if "/" in path else path + "/"

        def fail(self, status: int, code: str) -> None:
            self.answer(status, f"<Error><Code>{code}</Code><Message>told</Message></Error>".encode(),
                        {"Content-Type": "application/xml"})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
