# SPDX-License-Identifier: Apache-2.0
"""Test tools for those who build on compactlib: crash a function at every point, let the disk refuse, try an executor.

>>> import tempfile
>>> from compactlib.files import write_durably
>>> from compactlib.testing import explore_crashes, record
>>> def work(folder, files):
...     for number in (b"1", b"2"):
...         write_durably(files, folder / "counter", [number])
...         files.acknowledge(number)
>>> def check(folder, acknowledged):
...     if acknowledged:
...         assert (folder / "counter").read_bytes() >= acknowledged[-1]
>>> with tempfile.TemporaryDirectory() as folder:
...     explore_crashes(record(folder, work), check)
11

`compactlib.testing.views` and `drawn_choices` need the extra `compactlib[testing]`; nothing else here needs more than
the core.
"""

from compactlib._lazy import offer

offer(__name__)
