# SPDX-License-Identifier: Apache-2.0
"""What Spark costs and gives: each rewrite here, on Spark and plainly; from which size it pays; many executors.

    python benchmarks/spark.py [--quick] [--runs N] [--only PART] [--megabytes N] [--json FILE] [--plot FILE]
                               [--folder FOLDER]

Each figure measures ours and the references in turn in one run, on `local[2,4]`;
`docs/spark.md` says when it pays. An overhead is compared with the most that it may be. The data
sources have a script of their own, `spark_sources.py`. Needs Java; the plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from local_spark import spark_session
from measure import Figure, alternate, report
from raftlog_compaction import TimedExecutor, build_log, compact_copy
from spark_cluster import SparkCosts, simulate, suggested_partitioning
from spark_rewrites import CORES, Rewrite, all_rewrites

from compactlib.budget import Budget
from compactlib.executors import Attempt, Executor, RewriteResult, RewriteTask, RewrittenFile
from compactlib.observer import Observer
from compactlib.report import Table
from compactlib.rewrite import RewriteOutcome
from compactlib.spark import SparkExecutor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

EXECUTORS = (10, 20, 50, 100, 200, 500, 1000)
CLUSTERS = (8, 64)
DRAWN = (1, 4, 16, 64)
SIMULATED_TASKS = 10_000
TIMED_SEGMENT = 32 * 1024
"""Entries of a kilobyte in a segment of the log whose rewrites are timed: some ten of a tenth of a second or more."""
MOST_OVERHEAD = 0.05
MOST_JOB_SECONDS = 0.15
MOST_TASK_SECONDS = 0.05
OVERHEAD_TASKS = 64
PARTS = ("overhead", "rewrites", "simulation")

SESSION = """
import time
began = time.perf_counter()
{body}
print(time.perf_counter() - began)
"""
START_SPARK = """
from pyspark.sql import SparkSession
SparkSession.builder.master("local[2,4]").getOrCreate().range(1).collect()
"""


@attrs.frozen
class EmptyTask:
    """Does nothing, so that only its executor costs anything."""

    name: str

    def run(self, attempt: Attempt) -> RewriteResult:
        return RewriteResult(task=self.name, attempt=attempt.id, files=(RewrittenFile("none://", 0, 0, 0),),
                             bytes_read=0, bytes_written=0, seconds=0.0)


# --------------------------------------------------------------------------------------------------------- overhead


def overhead_figures(spark: SparkSession, quick: bool, runs: int) -> Iterator[Figure]:
    """A session, a job, a task: what each costs when there is nothing to do."""
    def process(body: str) -> float:
        shown = subprocess.run([sys.executable, "-c", SESSION.format(body=body)], check=True, capture_output=True)
        return float(shown.stdout)

    pairs = [(process(START_SPARK), process("import compactlib.spark")) for _ in range(1 if quick else 3)]
    yield Figure(figure="overhead.session", unit="s", values=tuple(pair[0] for pair in pairs), goal="",
                 reference="importing compactlib.spark alone", reference_values=tuple(pair[1] for pair in pairs))

    executor = SparkExecutor(spark)

    def ours(tasks: int) -> float:
        began = time.perf_counter()
        list(executor.run([EmptyTask(f"t{number}") for number in range(tasks)]))
        return time.perf_counter() - began

    def empty(tasks: int) -> float:
        began = time.perf_counter()
        spark.range(0, tasks, 1, tasks).mapInArrow(unchanged, "id bigint").collect()
        return time.perf_counter() - began

    for _ in range(3):
        ours(OVERHEAD_TASKS)
    values, references = alternate(3 * runs, lambda: ours(1), lambda: empty(1))
    yield Figure(figure="overhead.job", unit="s", values=tuple(values), reference="an empty mapInArrow",
                 reference_values=tuple(references), goal="")
    beyond = sorted(a - b for a, b in zip(values, references, strict=True))
    yield _limited("overhead.job_beyond_an_empty_one", "s", beyond, MOST_JOB_SECONDS)

    def a_task(way: Callable[[int], float]) -> float:
        # Of one core: 64 tasks on two cores take 32 times as long as one.
        return max(CORES * (way(OVERHEAD_TASKS) - way(1)) / (OVERHEAD_TASKS - 1), 1e-4)

    values, references = alternate(runs, lambda: a_task(ours), lambda: a_task(empty))
    yield Figure(figure="overhead.task_over_an_empty_one", unit="s of one core", values=tuple(values),
                 reference="a task of an empty mapInArrow", reference_values=tuple(references), goal="")
    yield _limited("overhead.task", "s of one core", values, MOST_TASK_SECONDS)

    def processor(way: Callable[[int], float]) -> float:
        before = processor_seconds()
        way(OVERHEAD_TASKS)
        return (processor_seconds() - before) / OVERHEAD_TASKS

    values, references = alternate(runs, lambda: processor(ours), lambda: processor(empty))
    yield Figure(figure="overhead.task_processor", unit="s of Java, workers and driver", values=tuple(values),
                 reference="a task of an empty mapInArrow", reference_values=tuple(references), goal="")


def _limited(figure: str, unit: str, values: Sequence[float], most: float) -> Figure:
    return Figure(figure=figure, unit=unit, values=tuple(values), reference="the most that it may be",
                  reference_values=(most,) * len(values), goal="<= 1")


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark maps when there is nothing to do."""
    yield from batches


def processor_seconds() -> float:
    """Return the CPU seconds of this process and all its descendants: Java, PySpark's workers, ended processes."""
    fields = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
    ours, found, tick = [os.getpid()], 0.0, float(os.sysconf("SC_CLK_TCK"))
    while ours:
        process = ours.pop()
        found += sum(map(int, fields[process][11:15])) / tick
        ours += [other for other, each in fields.items() if int(each[1]) == process]
    return found


# ---------------------------------------------------------------------------------------------------- results


@attrs.frozen
class Costs:
    """The measured times behind the rule and the simulation, in seconds.

    Attributes:
        session: starting one, with its first job.
        spark: a job, a task, a commit.
        tasks: times of one compaction's rewrites on the workers.
        run: the time of all of them through `SparkExecutor`, on all cores of the session.
    """

    session: float
    spark: SparkCosts
    tasks: tuple[float, ...]
    run: float


class _Noting:
    """Keeps how long each task took where it ran."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.tasks: list[float] = []

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        for outcome in self._executor.run(tasks, budget=budget, observer=observer):
            assert isinstance(outcome, RewriteResult), outcome
            self.tasks.append(outcome.seconds)
            yield outcome


def measured_costs(spark: SparkSession, scratch: Path, megabytes: int, figures: Sequence[Figure]) -> Costs:
    """Times of the tasks of one compaction on Spark, and the rest from the figures."""
    source = scratch / "log-times"
    build_log(source, max(megabytes * 1024 // TIMED_SEGMENT, 16), 0.3, 1, TIMED_SEGMENT)
    for _ in range(2):  # the first warms up
        noting = _Noting(SparkExecutor(spark))
        timed = TimedExecutor(noting)
        seconds, _ = compact_copy(source, scratch, timed)
    shutil.rmtree(source)
    cost = {figure.figure: statistics.median(figure.values) for figure in figures}
    commit = max(seconds - timed.seconds, 0.001) / len(noting.tasks)
    # A job here has one task.
    job = max(cost["overhead.job"] - cost["overhead.task"], 0.0)
    return Costs(cost["overhead.session"], SparkCosts(job_seconds=job, task_seconds=cost["overhead.task"],
                                                      commit_seconds=commit), tuple(noting.tasks), timed.seconds)


def simulation_figure(costs: Costs) -> Figure:
    """The simulation against the run whose times it was given."""
    free = attrs.evolve(costs.spark, commit_seconds=0.0)
    return Figure(figure="simulation.two_cores", unit="s", values=(simulate(costs.tasks, CORES, free).seconds,),
                  reference="the same tasks, run", reference_values=(costs.run,), goal="0.8 to 1.25")


def print_rule(rewrites: Sequence[tuple[Rewrite, Sequence[Figure]]], overheads: Sequence[Figure]) -> None:
    """From which size on Spark is faster than this machine, one sentence a rewrite; and how large tasks should be."""
    cost = {figure.figure: statistics.median(figure.values) for figure in overheads}
    job, session, task = (cost[f"overhead.{name}"] for name in ("job", "session", "task"))
    print(f"""
When Spark pays: x takes x / h here, where the fastest way does h a second, and f + x / (n c) on n cores of a
cluster. f = {job:.2f} s is a job with one empty task, {session:.1f} s more where a session must start;
c is the work of one core of this session after f. Disks and network are not in it.""")
    for rewrite, figures in rewrites:
        by_name = {figure.figure.rpartition(".")[2]: figure for figure in figures}
        # Where this library has no way of its own here, any tool that does the same is one.
        ways = [way for way in ("local", "processes") if way in rewrite.others] or list(rewrite.others)
        here = max(statistics.median(by_name[f"spark_over_{way}"].reference_values) for way in ways)
        spark = statistics.median(by_name[f"spark_over_{ways[0]}"].values)
        print(f"- {rewrite.name}: {_sentence(rewrite, here, spark, job, session)}")
    print(f"- A Spark task of {task * (1 - MOST_OVERHEAD) / MOST_OVERHEAD:.2f} s or more loses at most "
          f"{MOST_OVERHEAD:.0%} to its start ({task * 1e3:.0f} ms); smaller rewrites should share one "
          "(tasks_per_partition).")


def _sentence(rewrite: Rewrite, here: float, spark: float, job: float, session: float) -> str:
    seconds = rewrite.amount / spark
    core = rewrite.amount / CORES / max(seconds - job, seconds / 10)
    enough = max(int(here / core) + 1, CORES)
    of = rewrite.unit.replace("/s", "")
    told = []
    for cores in sorted({enough, *CLUSTERS}):
        if cores >= enough:
            gain = 1 / here - 1 / (cores * core)
            told.append(f"on {cores} from {job / gain:,.0f} {of} ({(job + session) / gain:,.0f})")
    return (f"{here:,.0f} {rewrite.unit} here, {core:,.0f} a core on Spark: it pays on {enough} cores or more, "
            f"{', '.join(told)}; in parentheses, where a session has to be started.")


def print_simulation(costs: Costs, plot: str | None) -> None:
    """The table, the partitioning that it suggests, and the plot."""
    tasks = random.Random(6).choices(costs.tasks, k=SIMULATED_TASKS)
    beside = attrs.evolve(costs.spark, commit_seconds=0.0)
    commit = costs.spark.commit_seconds * 1e3
    print(_simulated(tasks, costs.spark, f"one driver, where a commit takes {commit:.1f} ms"))
    print(_simulated(tasks, beside, "enough drivers, so that no commit waits"))
    if plot:
        draw(tasks, costs.spark, plot)


def _simulated(tasks: Sequence[float], costs: SparkCosts, drivers: str) -> Table:
    """Return the best partitioning for each number of executors, and its times."""
    best = [suggested_partitioning(tasks, executors, costs) for executors in EXECUTORS]
    rows = [{"executors": run.executors, "s with the defaults": simulate(tasks, run.executors, costs).seconds,
             "s, best": run.seconds, "tasks_per_partition": run.tasks_per_partition, "times one core": run.speedup,
             "cores busy": f"{run.busy_share:.0%}", "driver commits": f"{run.commit_share:.0%}"} for run in best]
    return Table.from_dicts(rows, title=f"{len(tasks):,} rewrites like the measured ones (median "
                                        f"{statistics.median(tasks):.3f} s), simulated; {drivers}")


def draw(tasks: Sequence[float], costs: SparkCosts, path: str) -> None:
    """How many times as fast as one core, by executors; one line for each number of tasks that share a Spark task.

    The lines assume enough drivers, so that no commit waits; one line shows the limit of a single driver.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(7, 4.5))
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    axes.plot(EXECUTORS, EXECUTORS, linestyle=":", color="grey", label="as many times as executors")
    beside = attrs.evolve(costs, commit_seconds=0.0)
    for shared in DRAWN:
        runs = [simulate(tasks, executors, beside, tasks_per_partition=shared) for executors in EXECUTORS]
        axes.plot(EXECUTORS, [run.speedup for run in runs], marker="o", markersize=3,
                  label=f"{shared} rewrites to a Spark task")
    if costs.commit_seconds:
        axes.axhline(sum(tasks) / (costs.commit_seconds * len(tasks)), linestyle="--", color="black", linewidth=0.8,
                     label="limit by the commits of one driver")
    axes.set(xscale="log", yscale="log", xlabel="executors of one core", ylabel="times as fast as one core",
             title=f"{len(tasks):,} rewrites of {1e3 * statistics.median(tasks):.0f} ms, simulated from measured times")
    axes.set_xticks(EXECUTORS, [str(each) for each in EXECUTORS])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    # Without the date, so that the same figures give the same file.
    drawing.savefig(path, dpi=100, bbox_inches="tight", metadata={"Date": None} if path.endswith(".svg") else None)


# ------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, about a minute")
    parser.add_argument("--only", choices=PARTS, help="one part (the simulation measures the overheads as well)")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the simulation (PNG or SVG)")
    parser.add_argument("--folder", help="where to put the data; default a temporary folder")
    parser.add_argument("--megabytes", type=int, help="the size of the log and of the blob store that are rewritten")
    parser.add_argument("--runs", type=int, default=None, help="counted runs of each (default 3, quick 1)")
    options = parser.parse_args()
    quick: bool = options.quick
    runs = options.runs or (1 if quick else 3)
    parts = PARTS if options.only is None else (options.only,)
    rewrites: list[tuple[Rewrite, list[Figure]]] = []
    costs = None
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        scratch = Path(folder)
        spark = spark_session("benchmark", cores=CORES)
        try:
            overheads = list(overhead_figures(spark, quick, runs)) if parts != ("rewrites",) else []
            if "rewrites" in parts:
                rewrites = list(rewrite_figures(spark, scratch, quick, options.megabytes, runs))
            if "simulation" in parts:
                costs = measured_costs(spark, scratch, 256 if quick else 1024, overheads)
        finally:
            spark.stop()
    figures = [figure for _, measured in rewrites for figure in measured]
    report([*overheads, *figures, *([simulation_figure(costs)] if costs else [])], options.json)
    if overheads and rewrites:
        print_rule(rewrites, overheads)
    if costs:
        print_simulation(costs, options.plot)


def rewrite_figures(spark: SparkSession, scratch: Path, quick: bool, megabytes: int | None,
                    runs: int) -> Iterator[tuple[Rewrite, list[Figure]]]:
    """All ways of each rewrite, in turn."""
    with all_rewrites(spark, scratch, quick, megabytes) as rewrites:
        began = time.perf_counter()
        for rewrite in rewrites:
            yield rewrite, list(rewrite.figures(runs))
            print(f"{rewrite.name}: {time.perf_counter() - began:.0f} s", flush=True)
            began = time.perf_counter()


if __name__ == "__main__":
    main()
