# SPDX-License-Identifier: Apache-2.0
"""Durable changes of a disk: the `Files` protocol, the lock of a folder, checksums and framing of stored records."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.files.disk import (
        Files as Files,
        LocalFiles as LocalFiles,
        OutFile as OutFile,
        sync_names as sync_names,
        write_durably as write_durably,
    )
else:
    offer(__name__, {
        "compactlib.files.disk": "Files LocalFiles OutFile sync_names write_durably",
    })
