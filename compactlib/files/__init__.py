"""Changing a disk: the files that callers pass in, the lock of a folder, checksums and framing of stored records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.files.disk import (
        Files,
        LocalFiles,
        LocalOutFile,
        OutFile,
        copy_range,
        list_folder,
        punch_range,
        read_exactly,
        replace_with_link,
        replace_with_symlink,
        sync_names,
        write_durably,
    )

__all__ = [
    "Files",
    "LocalFiles",
    "LocalOutFile",
    "OutFile",
    "copy_range",
    "list_folder",
    "punch_range",
    "read_exactly",
    "replace_with_link",
    "replace_with_symlink",
    "sync_names",
    "write_durably",
]

load_lazily(__name__, {
    ".disk": ("Files", "LocalFiles", "LocalOutFile", "OutFile", "copy_range", "list_folder", "punch_range",
              "read_exactly", "replace_with_link", "replace_with_symlink", "sync_names", "write_durably"),
})
