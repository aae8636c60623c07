# SPDX-License-Identifier: Apache-2.0
from compactlib.files.disk import (
    Files as Files,
    LocalFiles as LocalFiles,
    OutFile as OutFile,
    sync_names as sync_names,
    write_durably as write_durably,
)
