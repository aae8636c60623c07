# SPDX-License-Identifier: Apache-2.0
"""Who may talk in plain text: only this machine to itself, unless the host says otherwise in so many words."""

from __future__ import annotations

import ipaddress

from compactlib.errors import InvalidInput


def require_guarded(what: str, host: str, *, guard: str, is_guarded: bool, insecure: bool) -> None:
    """Return if `what` may listen at `host`, or connect to it.

    Args:
        what: as messages name it, for example `"the snapshot server"`.
        host: the address or name; only `localhost` and addresses of the loopback range are this machine's alone.
        guard: the argument that would say who talks, for example `"tls="`.
        is_guarded: whether it was given.
        insecure: whether the host wants it all the same.

    Raises:
        InvalidInput: it would be open to whoever reaches the address, and nothing was said of that.
    """
    if not (is_guarded or insecure or is_loopback(host)):
        raise InvalidInput(f"{what} was given {host or 'every address'!r} without {guard}, where whoever reaches it is "
                           f"believed; give {guard}, stay on 127.0.0.1, or say insecure=True")


def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, is reached from this machine alone. Other names are not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
