# SPDX-License-Identifier: Apache-2.0
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
