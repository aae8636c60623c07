# SPDX-License-Identifier: Apache-2.0
"""Fencing tokens: the rule that says which worker owns a job, and seals (HMAC) that make a forged token a refusal.

A token is the index of the log entry that assigned the job. A worker that shows a token that is at least the job's owns
it; a reassignment gives the job a larger one. A larger token that was never issued passes this rule as well, which is
harmless among workers that cooperate. Where they may not, the service seals each token for its job, and refuses what
carries no genuine seal. Keys and seals stay at the edge: the replicated state knows neither.

The rule is Pyroscope's, the seals are ours: `docs/design/scheduler.md`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import struct
from collections.abc import Mapping

from compactlib.errors import InvalidInput

MIN_KEY_BYTES = 16
MAX_KEYS = 16
_PURPOSE = b"compactlib scheduler token 1\0"
_TOKEN = struct.Struct(">QI")
_KEY_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class TokenSealer:
    """Seals tokens with HMAC-SHA256, and distinguishes genuine seals from others. Immutable; its `repr` shows no key.

    A seal binds the job's name and the token. It names its key, so that keys can be changed while jobs run: seal with
    the new one, and accept the old one until the last lease that it sealed has run out.

    Args:
        keys: at most 16 secrets of at least 16 bytes, by name (1 to 32 letters, digits, `-`, `_`). Use a key for one
            scheduler only: a seal says nothing about which one made it.
        current: the name of the key that seals; the only one, if there is one.

    Raises:
        InvalidInput: no key, too many, one that is too short or badly named, or `current` names none.
    """

    def __init__(self, keys: Mapping[str, bytes], *, current: str | None = None) -> None:
        if not 1 <= len(keys) <= MAX_KEYS:
            raise InvalidInput(f"{len(keys)} keys were given; a sealer takes 1 to {MAX_KEYS}")
        for name, key in keys.items():
            if not _are((name, str), (key, bytes)):
                raise InvalidInput(f"key {name!r:.100} is a {type(key).__name__}; give names as text and keys as bytes")
            if not _KEY_NAME.fullmatch(name):
                raise InvalidInput(f"{name!r} is no name for a key; use 1 to 32 letters, digits, '-' or '_'")
            if len(key) < MIN_KEY_BYTES:
                raise InvalidInput(f"key {name!r} has {len(key)} bytes; give at least {MIN_KEY_BYTES} random ones")
        if current is None and len(keys) > 1:
            raise InvalidInput(f"say which of the keys {', '.join(sorted(keys))} seals: current=...")
        self._current = next(iter(keys)) if current is None else current
        if self._current not in keys:
            raise InvalidInput(f"current is {current!r}, but the keys are {', '.join(sorted(keys))}")
        self._keys = dict(keys)

    def seal(self, job: str, token: int) -> str:
        """The seal of a token for a job: the key's name, a dot, and 43 characters. Costs a few microseconds.

        Raises:
            InvalidInput: the token lies outside 0 .. 2**64 - 1, or is no number, or the job no text.
        """
        if not _are((token, int), (job, str)) or not 0 <= token < 1 << 64:
            raise InvalidInput(f"token {token!r:.100} of job {job!r:.100}; a job is a text, tokens are log indexes "
                               f"between 0 and {(1 << 64) - 1}")
        return self._sealed(self._current, job, token)

    def is_genuine(self, job: str, token: int, seal: str) -> bool:
        """Whether the seal was made for this job and this token with one of the keys. Takes anything; never raises."""
        if not _are((seal, str), (job, str), (token, int)):
            return False
        name = seal.partition(".")[0]
        if name not in self._keys or not 0 <= token < 1 << 64:
            return False
        # As bytes: compare_digest refuses text beyond ASCII, which a forger may well send.
        return hmac.compare_digest(self._sealed(name, job, token).encode(), seal.encode("utf-8", "replace"))

    def _sealed(self, name: str, job: str, token: int) -> str:
        text = job.encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._keys[name], _PURPOSE + _TOKEN.pack(token, len(text)) + text, hashlib.sha256)
        return f"{name}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"

    def __repr__(self) -> str:
        return f"TokenSealer(keys {', '.join(sorted(self._keys))}; seals with {self._current})"


def _are(*values: tuple[object, type[object]]) -> bool:
    return all(isinstance(value, kind) for value, kind in values)
