"""Checkpoint locations: in pyarrow's words, and as they may be shown."""

from __future__ import annotations

import pytest
from pyarrow import fs

from spark_groupsource.checkpoint.location import location_to_open, scrubbed, shown_location
from spark_groupsource.redaction import MASK


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/data/checkpoint", "/data/checkpoint"),
        ("relative/checkpoint", "relative/checkpoint"),
        ("/data/a b%20c?d#e", "/data/a b%20c?d#e"),
        ("file:/data/a%20b", "/data/a%20b"),
        ("file:///data/a b", "/data/a b"),
        ("FILE:/data", "/data"),
        ("/opt/job/current//../state/q/", "/opt/job/state/q"),
        ("file:///opt/job/current/../state/q", "/opt/job/state/q"),
        ("../checkpoints/./q", "../checkpoints/q"),
        ("dbfs:/checkpoints/q", "/dbfs/checkpoints/q"),
        ("dbfs:///checkpoints/q", "/dbfs/checkpoints/q"),
        ("dbfs:/Volumes/main/q", "/Volumes/main/q"),
        ("s3://bucket/q", "s3://bucket/q"),
        ("s3a://bucket/q", "s3://bucket/q"),
        ("S3N://bucket/q/", "s3://bucket/q"),
        ("s3a://bucket//a///b//q//", "s3://bucket/a/b/q"),
        ("abfss://c@account/./a/../q", "abfss://c@account/q"),
        ("s3a://bucket/", "s3://bucket/"),
        ("s3a://bucket", "s3://bucket"),
        ("s3a://bucket/a b%2Fc#d", "s3://bucket/a%20b%252Fc%23d"),
        (
            "s3a://bucket/q?endpoint_override=127.0.0.1:9000&scheme=http",
            "s3://bucket/q?endpoint_override=127.0.0.1:9000&scheme=http",
        ),
        ("s3a://user:pass%2Fword@bucket/q", "s3://user:pass%2Fword@bucket/q"),
        ("gs://bucket/q", "gs://bucket/q?retry_limit_seconds=5"),
        ("gs://bucket/q?scheme=http", "gs://bucket/q?scheme=http&retry_limit_seconds=5"),
        ("gs://bucket/q?retry_limit_seconds=60", "gs://bucket/q?retry_limit_seconds=60"),
        ("abfss://c@account.dfs.core.windows.net/q", "abfss://c@account.dfs.core.windows.net/q"),
        ("hdfs://namenode:8020/q", "hdfs://namenode:8020/q"),
        ("viewfs://cluster/q", "viewfs://cluster/q"),
    ],
)
def test_what_is_opened(location: str, target: str) -> None:
    assert location_to_open(location) == target


@pytest.mark.parametrize(
    "location",
    [
        "wasb://c@account/q",
        "wasbs://c@account/q",
        "oss://bucket/q",
        "http://host/q",
        "file:q",
        "file://q",
        "s3a:/bucket",
    ],
)
def test_what_cannot_be_opened(location: str) -> None:
    with pytest.raises(ValueError, match=r"not supported|absolute path|no '//'"):
        location_to_open(location)


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("s3a://bucket/a b?region=eu-west-1", fs.S3FileSystem),
        ("gs://bucket/a b", fs.GcsFileSystem),
        ("abfs://container@account.dfs.core.windows.net/a b", fs.AzureFileSystem),
        ("abfss://container@account.dfs.core.windows.net/a b", fs.AzureFileSystem),
    ],
)
def test_pyarrow_takes_it(location: str, kind: type) -> None:
    filesystem, path = fs.FileSystem.from_uri(location_to_open(location))
    assert isinstance(filesystem, kind)
    assert path.endswith("/a b")


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/data/a@b?c=d", "/data/a@b?c=d"),
        ("s3a://bucket/q", "s3a://bucket/q"),
        ("s3a://bucket/a@b", "s3a://bucket/a@b"),
        ("s3a://KEY@bucket/q", f"s3a://{MASK}@bucket/q"),
        ("s3a://KEY:SECRET@bucket/q", f"s3a://{MASK}@bucket/q"),
        ("s3a://KEY:SEC/RET@bucket/q", f"s3a://{MASK}@bucket/q"),
        ("s3a://KEY:SEC@RET@bucket/q", f"s3a://{MASK}@bucket/q"),
        ("s3a:KEY:SECRET@bucket/q", f"s3a://{MASK}@bucket/q"),
        ("s3://b/q?region=r&access_key=KEY&token=T", f"s3://b/q?region=r&access_key={MASK}&token={MASK}"),
        ("s3://b/q?endpoint_override=KEY:SECRET@host", f"s3://b/q?endpoint_override={MASK}"),
        ("abfss://container@account/q", "abfss://container@account/q"),
        ("abfss://:SECRET@account/q", f"abfss://{MASK}@account/q"),
        ("abfss://c@account/q?sig=SECRET", f"abfss://c@account/q?sig={MASK}"),
        ("wasbs://container@account/q", "wasbs://container@account/q"),
        ("other://KEY:SECRET@host/q", f"other://{MASK}@host/q"),
    ],
)
def test_what_is_shown(location: str, shown: str) -> None:
    assert shown_location(location) == shown
    text = scrubbed(OSError(f"failed: {location} {location_or_none(location)}"), location)
    assert not [secret for secret in ("KEY", "SEC", "RET@") if secret in text or secret in shown]


def location_or_none(location: str) -> str | None:
    try:
        return location_to_open(location)
    except ValueError:
        return None


def test_an_error_is_cut_to_its_first_line_and_a_bearable_length() -> None:
    assert scrubbed(OSError("no libjvm\ntried: a\ntried: b"), "hdfs://host/q") == "no libjvm"
    assert len(scrubbed(OSError("x" * 5000), "hdfs://host/q")) == 300
    assert scrubbed(OSError("u: s3://u@h/q is unusual"), "s3://u:pw@h/q") == f"{MASK}: s3://{MASK}@h/q is unusual"
    assert len(scrubbed(OSError("x" * 5000), "/path")) == 300
