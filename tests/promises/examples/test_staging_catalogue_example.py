# SPDX-License-Identifier: Apache-2.0
"""`examples/staging_catalogue.py`: what its page promises, in a folder and as a script."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from compactlib.clock import ManualClock

_EXAMPLE = Path(__file__).parents[3] / "examples" / "staging_catalogue.py"


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("staging_catalogue", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["staging_catalogue"] = module
    spec.loader.exec_module(module)
    return module


def test_example_runs_as_a_script(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, str(_EXAMPLE), str(tmp_path / "work")], capture_output=True, text=True,
                            check=False)
    assert result.returncode == 0, result.stderr
    told = result.stdout
    assert "59 tombstones, at most 59 in a row" in told
    assert "compacted" in told
    assert "raw/0059.csv" in told
    assert "merge clean" in told
    assert "notes.txt" in told


def test_a_catalogue_can_be_driven_by_hand_and_opened_again(tmp_path: Path) -> None:
    module = _module()
    clock = ManualClock(1_000_000.0)
    with module.Catalogue(tmp_path / "work", clock=clock) as catalogue:
        main = catalogue.branch("main")
        main.put("tables/a.csv", b"1,2,3")
        main.put("tables/b.csv", b"4,5,6")
        main.commit("two tables")
        main.rm("tables/a.csv")
        main.put("tables/c.csv", b"7")
        assert main.get("tables/c.csv") == b"7"
        assert [row["what"] for row in main.diff().to_dicts()] == ["removed", "added"]
        assert not main.plan().is_empty
        assert not main.compact().is_empty
        assert "<table" in main.ls("tables/")._repr_html_()
        # Needed by the compacted state alone, or by a commit alone: not garbage.
        assert not list(catalogue.unneeded_contents())
        main.put("tables/d.csv", b"8")
        main.rm("tables/d.csv")
        main.compact()
        assert len(list(catalogue.unneeded_contents())) == 1
    with module.Catalogue(tmp_path / "work", clock=clock) as catalogue:
        main = catalogue.branch("main")
        assert [row["path"] for row in main.ls("tables/").to_dicts()] == ["tables/b.csv", "tables/c.csv"]
        assert [row["path"] for row in main.ls().to_dicts()] == ["tables/"]
        main.commit("a is gone")
        assert [row["message"] for row in main.log().to_dicts()] == ["a is gone", "two tables"]
        catalogue.repository.audit()
        assert catalogue.repository.verify().is_sound
