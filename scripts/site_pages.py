# SPDX-License-Identifier: Apache-2.0
"""Copies docs/ for the site, each notebook as a page with its outputs: `python scripts/site_pages.py FOLDER`.

Code hosts show notebooks as they are; the site's builder does not.
"""

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
_TO_NOTEBOOK = re.compile(r"(\]\([^)\s]*notebooks/[a-z-]+)\.ipynb\)")


def page_of(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name.

    Args:
        notebook: as JSON.
        name: prefix of the pictures' names.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![output of the cell above]({picture})")
            elif "text/html" in data:
                # A single line, since an empty line ends a table in Markdown; a wide table scrolls.
                parts.append(f'<div style="overflow-x: auto">{"".join(data["text/html"])}</div>'.replace("\n", ""))
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def main(folder: Path) -> None:
    """Replace the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.ipynb"))
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        text, pictures = page_of(json.loads(path.read_text()), path.stem)
        target = folder / "notebooks"
        target.mkdir(exist_ok=True)
        (target / f"{path.stem}.md").write_text(text)
        for name, content in pictures.items():
            (target / name).write_bytes(content)
    for page in folder.rglob("*.md"):
        page.write_text(_TO_NOTEBOOK.sub(r"\1.md)", page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
