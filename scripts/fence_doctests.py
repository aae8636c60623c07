# SPDX-License-Identifier: Apache-2.0
"""A griffe extension for `make site`: the doctests in docstrings become fenced blocks.

Markdown takes `>>>` for a quotation in a quotation, and what a call answers for plain text: lists turn into links.
"""

import re
from typing import Any

import griffe

# A doctest from its first prompt to the blank line that ends it, at any indentation.
_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)(?=\S| ).*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    """The docstring with each run of doctest lines inside a fence."""
    return _DOCTEST.sub(lambda found: f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```", docstring)


class FenceDoctests(griffe.Extension):  # type: ignore[misc]  # griffe lives in the site's own environment
    """Fences the doctests of every object that griffe collects."""

    def on_instance(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
