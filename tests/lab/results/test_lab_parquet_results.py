# SPDX-License-Identifier: Apache-2.0
"""Results in Parquet: what is read back is what was written, and can be run again to equal numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

import compactlib
from compactlib.blobstore import BlobChoice, BlobView, DChoices, Greedy
from compactlib.errors import CorruptData, InvalidInput, TaskFailed, Unsupported
from compactlib.lab import (
    BlobSettings,
    CsvTrace,
    Experiment,
    HotCold,
    RaftLogSettings,
    SchedulerLoad,
    SchedulerSettings,
    SensorSettings,
    run_experiments,
)
from compactlib.lab.blobstore.placement.fadac import FADaC
from compactlib.lab.results.experiments import Comparison
from compactlib.lab.traces.raft_traces import RaTrace
from compactlib.lab.traces.workloads import WithReads
from compactlib.raftlog import CostPolicy, DeadRatio, EveryNMinors, SegmentLimits
from compactlib.scheduler import LevelConfig, SchedulerConfig
from compactlib.staging import DeletesPolicy

parquet_results = pytest.importorskip("compactlib.lab.results.parquet_results")
parquet = pytest.importorskip("pyarrow.parquet")

LOAD = HotCold(keys=200, writes=600, record_bytes=50)
SLOTS = BlobSettings.of_slots(30, 16, record_bytes=50)
EXPERIMENTS = (
    Experiment(policy=DChoices(choices=3, seed=4, min_used_fraction=0.0), workload=LOAD, settings=SLOTS, seed=3,
               labels={"choices": 3, "mixed": "a"}),
    Experiment(policy=Greedy(min_used_fraction=0.0), workload=WithReads(of=LOAD, reads=0.2),
               settings=attrs.evolve(SLOTS, placement=FADaC()), labels={"mixed": 1}),
    Experiment(policy=CostPolicy(), workload=LOAD, settings=RaftLogSettings(
        limits=SegmentLimits(max_entries=64), snapshot_every=50, trigger=EveryNMinors(4) | DeadRatio(3.0))),
    Experiment(policy=DeletesPolicy(threshold=10), workload=LOAD, settings=SensorSettings(base_keys=100)),
    Experiment(policy=SchedulerConfig(levels=(LevelConfig(max_blocks=10, max_age_seconds=30),)),
               workload=SchedulerLoad(blocks=30), settings=SchedulerSettings()))


@attrs.frozen
class Failing:
    """A policy with a bug, of a class that no library has."""

    part: float = 0.5
    name: ClassVar[str] = "failing"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        raise ZeroDivisionError("the policy's bug")


def test_results_are_read_as_they_were_written_and_repeated_to_equal_numbers(tmp_path: Path) -> None:
    made = run_experiments(EXPERIMENTS, skip=0.25)
    path = tmp_path / "results.parquet"
    parquet_results.write(made, path)
    found = parquet_results.read(path)
    assert found.outcomes == made.outcomes
    assert found.to_dicts() == made.to_dicts()
    assert found.experiments == made.experiments
    assert [each.run() for each in found.experiments] == list(made.outcomes)


def test_any_reader_of_parquet_sees_the_table(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    made = run_experiments(EXPERIMENTS)
    parquet_results.write(made, path)
    rows = parquet.read_table(path).to_pylist()
    assert [row["write_amplification"] for row in rows] == [row["write_amplification"] for row in made.to_dicts()]
    assert {row["compactlib"] for row in rows} == {compactlib.__version__}
    assert [row["seed"] for row in rows] == [3, 0, 0, 0, 0]


def test_what_failed_is_kept_and_a_class_of_your_own_is_given(tmp_path: Path) -> None:
    made = run_experiments([EXPERIMENTS[1], Experiment(policy=Failing(0.25), workload=LOAD, settings=SLOTS)])
    path = tmp_path / "results.parquet"
    parquet_results.write(made, path)
    found = parquet_results.read(path, classes=[Failing])
    [(experiment, error)] = found.failures
    assert experiment.policy == Failing(0.25)
    assert str(error) == str(made.failures[0][1])
    with pytest.raises(InvalidInput, match=r"Failing.*classes"):
        parquet_results.read(path)


@pytest.mark.parametrize("name", ["compactlib.gone:Greedy", "compactlib.:Greedy", "compactlib.clock:Gone"])
def test_a_class_that_this_release_does_not_have_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "results.parquet"
    parquet_results.write(run_experiments(EXPERIMENTS[:1]), path)
    table = parquet.read_table(path)
    experiments = table["experiment"].to_pylist()
    changed = [text.replace("compactlib.lab.traces.workloads:HotCold", name) for text in experiments]
    parquet.write_table(table.set_column(table.schema.get_field_index("experiment"), "experiment", [changed]), path)
    with pytest.raises(InvalidInput, match=f"the class {name}; give it"):
        parquet_results.read(path)


def test_a_class_that_another_release_made_of_other_fields_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    parquet_results.write(run_experiments(EXPERIMENTS[2:3]), path)
    table = parquet.read_table(path)
    [told] = table["experiment"].to_pylist()
    changed = told.replace('"snapshot_every"', '"snapshots_each"')
    assert changed != told
    parquet.write_table(table.set_column(table.schema.get_field_index("experiment"), "experiment", [[changed]]), path)
    with pytest.raises(InvalidInput, match=r"RaftLogSettings.*snapshots_each"):
        parquet_results.read(path)


@pytest.mark.parametrize("damage", ["no column", "no skip", "no number", "no JSON", "no experiment", "no report"])
def test_results_that_are_not_whole_are_corrupt(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "results.parquet"
    parquet_results.write(run_experiments(EXPERIMENTS[2:3]), path)
    table = parquet.read_table(path)
    metadata = dict(table.schema.metadata)
    columns = {"no JSON": ("experiment", "{"), "no experiment": ("experiment", "[1]"), "no report": ("report", "{}")}
    if damage == "no column":
        table = table.drop_columns(["failure"])
    elif damage in columns:
        name, text = columns[damage]
        table = table.set_column(table.schema.get_field_index(name), name, [[text]])
    else:
        metadata |= {b"skip": b"much"}
        if damage == "no skip":
            del metadata[b"skip"]
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(CorruptData, match="results"):
        parquet_results.read(path)


def test_a_trace_is_known_by_its_content(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time,op,key,size,ttl\n0,put,a,20,\n1,put,b,20,60\n")
    path = tmp_path / "results.parquet"
    made = run_experiments([attrs.evolve(EXPERIMENTS[1], workload=WithReads(of=CsvTrace(trace), reads=0.5))])
    parquet_results.write(made, path)
    assert parquet_results.read(path).experiments == made.experiments
    trace.write_text("time,op,key,size,ttl\n0,put,a,21,\n1,put,b,20,60\n")
    with pytest.raises(CorruptData, match="SHA-256"):
        parquet_results.read(path)
    trace.unlink()
    assert parquet_results.read(path).outcomes == made.outcomes


def test_a_trace_is_read_once_however_many_replay_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, read = tmp_path / "trace.csv", []
    trace.write_text("time,op,key,size,ttl\n0,put,a,20,\n1,put,b,20,60\n")

    def sum_of(path: str) -> str:
        read.append(path)
        return "the sum"

    monkeypatch.setattr(parquet_results, "_sha256", sum_of)
    made = run_experiments([attrs.evolve(EXPERIMENTS[1], workload=CsvTrace(trace), seed=seed) for seed in range(20)])
    parquet_results.write(made, tmp_path / "results.parquet")
    assert parquet_results.read(tmp_path / "results.parquet").experiments == made.experiments
    assert read == [str(trace)] * 2


def test_odd_values_are_kept_and_shown_as_text(tmp_path: Path) -> None:
    trace, path = tmp_path / "\udcff.csv", tmp_path / "results.parquet"
    trace.write_text("time,op,key,size,ttl\n0,put,a,20,\n1,put,b,20,60\n")
    odd: Any = {"set": frozenset([1, "a", None]), "long": -(1 << 70)}
    made = run_experiments([attrs.evolve(EXPERIMENTS[1], workload=CsvTrace(trace), seed=1 << 70, labels=odd),
                            attrs.evolve(EXPERIMENTS[1], workload=CsvTrace(trace), seed=2, labels={"long": 0.5})])
    parquet_results.write(made, path)
    found = parquet_results.read(path)
    assert (found.experiments, found.outcomes) == (made.experiments, made.outcomes)
    shown = parquet.read_table(path).to_pylist()
    assert [(row["seed"], row["long"]) for row in shown] == [(str(1 << 70), str(-(1 << 70))), ("2", "0.5")]
    assert "\\udcff.csv" in shown[0]["of"]


def test_a_trace_that_is_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    folder, path = tmp_path / "ra", tmp_path / "results.parquet"
    (folder / "snapshots").mkdir(parents=True)
    (folder / "1.segment").write_bytes(b"one")
    made = Comparison((attrs.evolve(EXPERIMENTS[2], workload=RaTrace(folder)),), (
        TaskFailed("it has failed", task="experiment 00000", kind="CorruptData", detail=""),))
    parquet_results.write(made, path)
    assert parquet_results.read(path).experiments == made.experiments
    for name, content in (("2.segment", b"two"), ("1.segment", b"other")):
        before = (folder / name).read_bytes() if (folder / name).exists() else None
        (folder / name).write_bytes(content)
        with pytest.raises(CorruptData, match="SHA-256"):
            parquet_results.read(path)
        (folder / name).unlink()
        if before is not None:
            (folder / name).write_bytes(before)
    assert parquet_results.read(path).experiments == made.experiments


def test_what_is_no_file_of_results_is_refused(tmp_path: Path) -> None:
    import pyarrow

    path = tmp_path / "results.parquet"
    path.write_bytes(b"no Parquet")
    with pytest.raises(CorruptData, match="Parquet"):
        parquet_results.read(path)
    metadatas: list[dict[str, str]] = [{}, {"compactlib.results": "99"}]
    for metadata in metadatas:
        parquet.write_table(pyarrow.table({"a": [1]}).replace_schema_metadata(metadata), path)
        with pytest.raises(Unsupported if metadata else CorruptData):
            parquet_results.read(path)




def test_what_cannot_be_kept_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Local(Greedy):
        pass

    odd = attrs.evolve(EXPERIMENTS[1], labels={"object": object()})  # type: ignore[dict-item]
    for experiment in (attrs.evolve(EXPERIMENTS[1], policy=Local(min_used_fraction=0.0)), odd):
        made = run_experiments([experiment])
        with pytest.raises(InvalidInput, match="cannot be kept"):
            parquet_results.write(made, tmp_path / "results.parquet")
    assert list(tmp_path.iterdir()) == []
