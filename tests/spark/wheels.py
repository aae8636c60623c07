"""A small wheel, as `ship_wheel` takes it."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, *, name: str = "greeting-1.0-py3-none-any.whl", purelib: str = "true") -> Path:
    """A wheel with one module."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        # The same bytes whenever it is made.
        for member, text in (("greeting/__init__.py", "def greet(who):\n    return f'hello, {who}'\n"),
                             ("greeting-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: {purelib}\n")):
            archive.writestr(zipfile.ZipInfo(member), text)
    return path
