"""The registry's client before it has asked anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_groupsource.errors import OptionError
from spark_groupsource.functions import from_confluent_avro
from spark_groupsource.functions.schema_registry import Registry, RegistrySettings

URL = "https://registry.invalid:8081"


def test_a_missing_file_of_authorities_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "missing.pem")
    with pytest.raises(OptionError, match=r"'ssl.ca.location' has the value '.*/missing.pem'.*No such file"):
        from_confluent_avro("value", URL, subject="orders-value", options={"ssl.ca.location": path})


def test_a_file_of_authorities_that_is_not_pem_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.txt"
    path.write_text("hello\n")
    for given in (path, tmp_path):
        with pytest.raises(OptionError, match=f"'ssl.ca.location' has the value '{given}'"):
            Registry(RegistrySettings(URL, ca_location=str(given)))
