# SPDX-License-Identifier: Apache-2.0
"""Durable changes of a disk: the `Files` protocol, the lock of a folder, checksums and frames of stored records."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.files.checksum import crc32 as crc32
    from compactlib.files.disk import (
        Files as Files,
        LocalFiles as LocalFiles,
        OutFile as OutFile,
        StrPath as StrPath,
        list_folder as list_folder,
        local_path as local_path,
        sync_names as sync_names,
        write_durably as write_durably,
    )
else:
    offer(__name__, {
        "compactlib.files.checksum": "crc32",
        "compactlib.files.disk": "Files LocalFiles OutFile StrPath list_folder local_path sync_names write_durably",
    })
