"""TLS files of the options: which one is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_groupsource.client.https import TlsFiles, tls_context
from spark_groupsource.errors import OptionError
from tests.realkafka.security import Authority

PASSWORD = "canary-44e0"


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    """Return files that fit each other, with an encrypted key."""
    authority = Authority(tmp_path, "ca")
    mine = authority.identity("reader", password=PASSWORD)
    return TlsFiles(str(authority.certificate), str(mine.certificate), str(mine.key), PASSWORD)


def refused(files: TlsFiles) -> str:
    with pytest.raises(OptionError, match="OPTION_INVALID") as raised:
        tls_context(files)
    assert PASSWORD not in str(raised.value)
    assert PASSWORD not in repr(files)
    return str(raised.value)


def test_files_that_fit(files: TlsFiles, tmp_path: Path) -> None:
    tls_context(files)
    both = tmp_path / "both.pem"
    both.write_bytes(Path(files.certificate_location).read_bytes() + Path(files.key_location).read_bytes())
    tls_context(replace(files, certificate_location=str(both), key_location=""))
    tls_context(TlsFiles())


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("ca_location", "ssl.ca.location"),
        ("certificate_location", "ssl.certificate.location"),
        ("key_location", "ssl.key.location"),
    ],
)
def test_the_file_that_cannot_be_used_is_named(files: TlsFiles, tmp_path: Path, name: str, option: str) -> None:
    text = tmp_path / "hello.txt"
    text.write_text("hello\n")
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    for path, said in ((tmp_path / "missing", "No such file"), (tmp_path, ""), (text, ""), (empty, "")):
        message = refused(replace(files, **{name: str(path)}))
        assert f"'{option}' has the value '{path}'" in message
        assert "on the driver and on executors" in message
        assert said in message


def test_a_wrong_or_missing_password(files: TlsFiles) -> None:
    wrong = refused(replace(files, key_password="wrong"))
    assert "'ssl.key.password' has the value '...'" in wrong
    assert f"of the file '{files.key_location}'; here: the password does not open it" in wrong
    missing = refused(replace(files, key_password=""))
    assert "'ssl.key.password' has the value ''" in missing
    assert "is needed" in missing


def test_a_key_of_another_certificate(files: TlsFiles, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "ca").identity("reader")
    message = refused(replace(files, key_location=str(other.key)))
    assert f"'ssl.key.location' has the value '{other.key}'" in message
    assert f"private key of the certificate in '{files.certificate_location}'" in message
    alone = refused(replace(files, key_location=""))
    assert f"'ssl.certificate.location' has the value '{files.certificate_location}'" in alone


def test_a_certificate_in_the_place_of_the_key(files: TlsFiles) -> None:
    assert "'ssl.key.location'" in refused(replace(files, key_location=files.certificate_location))
    assert "'ssl.certificate.location'" in refused(replace(files, certificate_location=files.key_location))
