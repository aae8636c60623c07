"""A small wheel, as `ship_wheel` takes it."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, *, name: str = "greeting-1.0-py3-none-any.whl", purelib: str = "true",
          metadata: str | None = "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n") -> Path:
    """A wheel with one module."""
    members = {"greeting/__init__.py": "def greet(who):\n    return f'hello, {who}'\n",
               "greeting-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: {purelib}\n"}
    if metadata is not None:
        members["greeting-1.0.dist-info/METADATA"] = metadata
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        # The same bytes whenever it is made.
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member), text)
    return path
