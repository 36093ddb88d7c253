"""What the flight delays job has written: merged, checked against the input, and shown.

Pure functions over Arrow tables and plain values, and the few lines that read the job's Parquet files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from jobs.flight_delays import DELAYED_FROM_MINUTES

Key = TypeVar("Key")


class GroupKey(NamedTuple):
    carrier: str
    origin: str
    hour: int


class Route(NamedTuple):
    carrier: str
    origin: str


@dataclass(frozen=True, slots=True)
class Delays:
    """A mergeable aggregate: two of disjoint rows merge to that of all rows."""

    flights: int
    departed: int
    delayed: int
    delay_sum: int
    delay_min: int | None
    delay_max: int | None
    histogram: tuple[int, ...]

    def merge(self, other: Delays) -> Delays:
        return Delays(
            self.flights + other.flights,
            self.departed + other.departed,
            self.delayed + other.delayed,
            self.delay_sum + other.delay_sum,
            min((d for d in (self.delay_min, other.delay_min) if d is not None), default=None),
            max((d for d in (self.delay_max, other.delay_max) if d is not None), default=None),
            tuple(a + b for a, b in zip(self.histogram, other.histogram, strict=True)),
        )

    @property
    def mean(self) -> float | None:
        return self.delay_sum / self.departed if self.departed else None

    def percentile(self, fraction: float, edges: Sequence[int]) -> float | None:
        """Linear inside the bucket that the percentile falls into; the outer buckets end at min and max."""
        if not self.departed or self.delay_min is None or self.delay_max is None:
            return None
        wanted = fraction * self.departed
        below = 0
        for bucket, count in enumerate(self.histogram):
            if count and below + count >= wanted:
                low = self.delay_min if bucket == 0 else max(edges[bucket - 1], self.delay_min)
                high = self.delay_max if bucket == len(edges) else min(edges[bucket], self.delay_max)
                return low + (high - low) * (wanted - below) / count
            below += count
        return float(self.delay_max)


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about the results: whether it holds, and the numbers that say so."""

    name: str
    ok: bool
    detail: str


def merge_all(partials: Iterable[tuple[Key, Delays]]) -> dict[Key, Delays]:
    merged: dict[Key, Delays] = {}
    for key, delays in partials:
        merged[key] = merged[key].merge(delays) if key in merged else delays
    return merged


def by_route(merged: Mapping[GroupKey, Delays]) -> dict[Route, Delays]:
    return merge_all((Route(key.carrier, key.origin), delays) for key, delays in merged.items())


def aggregate_rows(flights: pa.Table, edges: Sequence[int]) -> dict[GroupKey, Delays]:
    """The aggregates of the input itself, computed here row by row, without Spark and without merging."""
    rows: dict[GroupKey, list[int | None]] = {}
    columns = (flights[name].to_pylist() for name in ("carrier", "origin", "hour", "dep_delay"))
    for carrier, origin, hour, delay in zip(*columns, strict=True):
        rows.setdefault(GroupKey(carrier, origin, hour), []).append(delay)
    return {key: _delays_of(delays, edges) for key, delays in rows.items()}


def _delays_of(delays: Sequence[int | None], edges: Sequence[int]) -> Delays:
    known = [delay for delay in delays if delay is not None]
    histogram = [0] * (len(edges) + 1)
    for delay in known:
        histogram[bisect_left(edges, delay)] += 1
    return Delays(
        flights=len(delays),
        departed=len(known),
        delayed=sum(delay >= DELAYED_FROM_MINUTES for delay in known),
        delay_sum=sum(known),
        delay_min=min(known, default=None),
        delay_max=max(known, default=None),
        histogram=tuple(histogram),
    )


def read_partials(output: Path) -> list[tuple[GroupKey, Delays]]:
    partials = []
    for file in sorted((output / "delays").glob("batch=*/*.parquet")):
        for row in pq.read_table(file, partitioning=None).to_pylist():
            key = GroupKey(row.pop("carrier"), row.pop("origin"), row.pop("hour"))
            row["histogram"] = tuple(row["histogram"])
            row["delay_sum"] = row["delay_sum"] or 0  # a sum over no value is null in SQL
            partials.append((key, Delays(**row)))
    return partials


def read_rows(output: Path) -> pa.Table:
    """All rows of all batches; the column `batch` says which."""
    files = sorted(str(file) for file in (output / "flights").glob("batch=*/*.parquet"))
    if not files:
        raise FileNotFoundError(f"no rows in {output / 'flights'}: the job has completed no batch")
    batch = ds.partitioning(pa.schema([("batch", pa.string())]), flavor="hive")
    return ds.dataset(files, partitioning=batch, partition_base_dir=str(output / "flights")).to_table()


def rows_by_query(rows: pa.Table) -> dict[str, int]:
    """Rows per query id, which is the directory name before the batch number."""
    counts: dict[str, int] = {}
    for entry in pc.value_counts(rows["batch"].combine_chunks()).to_pylist():
        query = entry["values"].rpartition("-")[0]
        counts[query] = counts.get(query, 0) + entry["counts"]
    return counts


def check_offsets(rows: pa.Table, ends: Mapping[int, int]) -> Check:
    """Every offset below each partition's end is there exactly once."""
    wanted = sum(ends.values())
    pairs = rows.select(["partition", "offset"]).group_by(["partition", "offset"]).aggregate([([], "count_all")])
    doubled = rows.num_rows - pairs.num_rows
    present = 0
    for partition, end in ends.items():
        mine = pc.and_(pc.equal(pairs["partition"], partition), pc.less(pairs["offset"], end))
        present += pc.sum(mine).as_py() or 0
    missing, unknown = wanted - present, pairs.num_rows - present
    return Check(
        "every record once, by partition and offset",
        not (missing or doubled or unknown),
        f"{wanted:,} records in Kafka, {missing:,} missing, {doubled:,} doubled, {unknown:,} unknown",
    )


def check_rows(rows: pa.Table, flights: pa.Table) -> Check:
    """The rows have the values of the input, each as often as the input has it, and its scheduled departure."""
    malformed = rows.num_rows - rows["malformed"].null_count
    departure = pc.add(flights["time_hour"], pc.multiply(flights["minute"], pa.scalar(60, pa.duration("s"))))
    expected = flights.append_column("timestamp", departure)
    columns = expected.column_names
    got = _sorted(rows.select(columns).cast(_wide_types(rows, columns)))
    want = _sorted(expected.cast(got.schema))
    return Check(
        "rows equal the input, in all columns",
        got.equals(want) and not malformed,
        f"{rows.num_rows:,} rows, {flights.num_rows:,} flights, {malformed:,} malformed",
    )


def _wide_types(rows: pa.Table, columns: Sequence[str]) -> pa.Schema:
    def wide(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_integer(kind):
            return pa.int64()
        return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind

    return pa.schema([(name, wide(rows.schema.field(name).type)) for name in columns])


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def check_aggregates(merged: Mapping[GroupKey, Delays], wanted: Mapping[GroupKey, Delays], partials: int) -> Check:
    wrong = sum(merged.get(key) != wanted.get(key) for key in merged.keys() | wanted.keys())
    return Check(
        "merged partial aggregates equal those of the input",
        not wrong,
        f"{partials:,} partial aggregates merged to {len(merged):,} groups, {wrong:,} wrong",
    )


def delay_table(routes: Mapping[Route, Delays], edges: Sequence[int]) -> str:
    """Delays per carrier and origin, the busiest first."""
    lines = ["carrier origin   flights  cancelled  delayed   mean    p50    p90    max   (minutes)"]
    for route, delays in sorted(routes.items(), key=lambda item: (-item[1].flights, item[0])):
        percent = f"{delays.delayed / delays.departed:7.1%}" if delays.departed else "      -"
        numbers = (delays.mean, delays.percentile(0.5, edges), delays.percentile(0.9, edges), delays.delay_max)
        # Adding 0.0 makes a rounded minus zero plain.
        shown = " ".join("     -" if number is None else f"{round(number, 1) + 0.0:6.1f}" for number in numbers)
        cancelled = delays.flights - delays.departed
        lines.append(f"{route.carrier:<7} {route.origin:<6} {delays.flights:>9,} {cancelled:>10,}  {percent} {shown}")
    return "\n".join(lines)
