"""Translate a checkpoint location from Spark's (Hadoop's) form to pyarrow's, and mask its secrets for logs.

Users give the source the same location as the writer. Hadoop and pyarrow differ in names of schemes (`s3a://` is
`s3://`), and Hadoop takes a path literally where a URI escapes characters. Pure: text in, text out.

A URI may contain credentials: use `shown_location` and `scrubbed` for texts that may appear in logs.
"""

from __future__ import annotations

import re
from posixpath import normpath
from urllib.parse import quote, unquote

from spark_groupsource.redaction import MASK

# Hadoop's scheme -> pyarrow's. Neither side's HDFS schemes need a change, but pyarrow needs libhdfs and a Java.
_SCHEMES = {
    "s3": "s3", "s3a": "s3", "s3n": "s3",
    "gs": "gs", "gcs": "gcs",
    "abfs": "abfs", "abfss": "abfss",
    "hdfs": "hdfs", "viewfs": "viewfs",
}  # fmt: skip
LOCATIONS = "a path; file:/...; dbfs:/...; " + ", ".join(f"{scheme}://" for scheme in _SCHEMES)

# In these schemes the part before "@" names a container or a file system.
_CONTAINER_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
# Parameters of pyarrow's URIs whose values are not secret.
_PLAIN_PARAMETERS = (
    "region", "scheme", "endpoint_override", "retry_limit_seconds", "enable_tls", "blob_storage_authority",
    "dfs_storage_authority", "allow_bucket_creation", "allow_bucket_deletion", "replication",
)  # fmt: skip
# Otherwise pyarrow retries an unreachable Google bucket for 15 minutes, while a revoke waits.
_GCS_RETRY_LIMIT_S = 5
_LONGEST_ERROR = 300
_SHORT = 3

_STORE = re.compile(r"[a-z0-9]+://|/+(dbfs|Volumes)(/|$)")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


def location_to_open(location: str) -> str:
    """Return a local path, or a URI for pyarrow's `FileSystem.from_uri`.

    The path is taken literally but for repeated slashes and dots, as Hadoop does: `link/../q` is `q`, wherever the link
    leads. A `?name=value` after it sets pyarrow's parameters (for instance `?endpoint_override=host:port&scheme=http`).
    Raises ValueError for a scheme that is not supported.
    """
    uri = _URI.fullmatch(location)
    if uri is None:
        return _as_hadoop_has_it(location)
    scheme, rest = uri.group(1).lower(), uri.group(2)
    if scheme in ("file", "dbfs"):
        path = rest.removeprefix("//")
        if not path.startswith("/"):
            raise ValueError("it is not an absolute path")
        path = _as_hadoop_has_it(path)
        # Databricks mounts its file system below /dbfs, and volumes at their own path.
        return path if scheme == "file" or path.startswith("/Volumes/") else f"/dbfs{path}"
    if scheme not in _SCHEMES:
        raise ValueError(f"the scheme {scheme} is not supported")
    if not rest.startswith("//"):
        raise ValueError(f"no '//' after {scheme}:")
    place, _, query = rest[2:].partition("?")
    authority, slash, path = place.partition("/")
    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in query:
        query = "&".join(part for part in (query, f"retry_limit_seconds={_GCS_RETRY_LIMIT_S}") if part)
    # In a store `a//b` is another name than `a/b`, and pyarrow refuses it.
    path = _as_hadoop_has_it(slash + path) if slash else ""
    return f"{_SCHEMES[scheme]}://{authority}{quote(path)}" + (f"?{query}" if query else "")


def _as_hadoop_has_it(path: str) -> str:
    """Return a path without repeated slashes and without dots, as Hadoop's Path does."""
    return normpath(re.sub("/+", "/", path))


def is_local(location: str) -> bool:
    """Return whether a location needs no request to a store. Databricks' file system and volumes are stores, too.

    A location of an unsupported form is none: the commit log's reader warns about it.
    """
    try:
        return not _STORE.match(location_to_open(location))
    except ValueError:
        return False


def has_generations(path: str) -> bool:
    """Return whether a path is that of a flow of Spark Declarative Pipelines, `<storage>/_checkpoints/<table>/<flow>`.

    The table has its catalog and database before it, each a folder. The flow's checkpoints are numbered folders below
    the path, and a full refresh begins the next one (Spark's SystemMetadata).
    """
    parts = path.rstrip("/").split("/")
    return "_checkpoints" in parts[:-2] and not parts[-1].isdigit()


def shown_location(location: str) -> str:
    """Return the location without user, password and secret parameters. In doubt, a part is masked."""
    uri = _URI.fullmatch(location)
    if uri is None:
        return location
    place, mark, query = uri.group(2).partition("?")
    user = _user(location)
    if user:
        place = f"//{MASK}@{place.rpartition('@')[2]}"
    shown = "&".join(
        part if name in _PLAIN_PARAMETERS and "@" not in value else f"{name}={MASK}"
        for part, name, value in _parameters(query)
    )
    return f"{uri.group(1)}:{place}{mark}{shown}"


def scrubbed(error: BaseException, location: str) -> str:
    """Return an error's first line, with the parts masked that `shown_location` masks in this location."""
    uri = _URI.fullmatch(location)
    text = (str(error) or type(error).__name__).partition("\n")[0]
    if uri is None:
        return text[:_LONGEST_ERROR]
    user = _user(location)
    secrets = [user, *user.split(":")]
    secrets += [
        value
        for _, name, value in _parameters(uri.group(2).partition("?")[2])
        if name not in _PLAIN_PARAMETERS or "@" in value
    ]
    # Longest first: a secret may be a part of another one.
    for secret in sorted({form for item in secrets for form in (item, unquote(item))} - {""}, key=len, reverse=True):
        # A short one is masked as a whole word only: a user "u" is no reason to mask each letter u.
        edge = r"\b" if len(secret) <= _SHORT else ""
        text = re.sub(rf"{edge}{re.escape(secret)}{edge}", MASK, text)
    return text[:_LONGEST_ERROR]


def _user(location: str) -> str:
    """Return the part that may be user and password. A secret key may contain a '/' that should have been escaped."""
    scheme, _, rest = location.partition(":")
    user = rest.partition("?")[0].removeprefix("//").rpartition("@")[0]
    is_container = scheme.lower() in _CONTAINER_SCHEMES and "/" not in user
    return "" if ":" not in user and (is_container or "/" in user) else user


def _parameters(query: str) -> list[tuple[str, str, str]]:
    """Return each parameter as (name=value, name, value)."""
    parts = [part for part in query.split("&") if part]
    return [(part, part.partition("=")[0], part.partition("=")[2]) for part in parts]
