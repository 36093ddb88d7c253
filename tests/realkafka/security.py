"""What a Kafka with TLS, SASL and ACLs needs: keys and certificates, users, rights, and clients' settings for them.

A cluster made with `RealKafka(security=Security(users))` keeps its plain listener, whose clients are the super user,
and has three more per broker: SASL_PLAINTEXT (SCRAM), SSL (asks for a client certificate) and SASL_SSL (SCRAM). What
no rule allows is denied there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from tests.realkafka.login import SCRAM, scram_settings

__all__ = ["SCRAM", "Authority", "Identity", "Security", "allow", "scram_settings"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and its certificate, in files: PEM, and PKCS#12 for clients that want both in one."""

    key: Path
    certificate: Path
    keystore: Path


class Authority:
    """A certificate authority with its files in a folder; every key lives for a day."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = _signed(self._name, self._name, self._key.public_key(), self._key, authority=True)
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(_pem(self._certificate))

    def identity(self, name: str, password: str | None = None) -> Identity:
        """Make a key with a certificate for 127.0.0.1 and localhost; its principal is User:<name>.

        With a password the key and the keystore are encrypted.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(_name(name), self._name, key.public_key(), self._key, authority=False)
        locked: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            locked = serialization.BestAvailableEncryption(password.encode())
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
        files = Identity(*(self._folder / f"{name}{end}" for end in (".key", ".crt", ".p12")))
        files.key.write_bytes(pem)
        files.certificate.write_bytes(_pem(certificate) + _pem(self._certificate))
        files.keystore.write_bytes(
            pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [self._certificate], locked)
        )
        return files


class Security:
    """What the brokers of a cluster are told; `users` are names and SCRAM passwords.

    The keys are made when the cluster starts, in its run directory: before that there is no `authority`.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._authority: Authority | None = None

    @property
    def authority(self) -> Authority:
        """The one that the brokers trust, and that has signed their keys."""
        if self._authority is None:
            raise RuntimeError("the cluster has not started")
        return self._authority

    @property
    def listeners(self) -> tuple[str, ...]:
        """The security protocols of the listeners, which are their names, too."""
        return "SASL_PLAINTEXT", "SSL", "SASL_SSL"

    def login(self) -> dict[str, str]:
        """Return nothing: the clients of a test choose a listener and a user."""
        return {}

    def prepare(self, run_dir: Path) -> dict[str, object]:
        """Make the keys; return the settings of every broker."""
        self._authority = Authority(run_dir / "keys", "ca")
        broker = self._authority.identity("broker")
        keystore = run_dir / "keys" / "broker.pem"
        keystore.write_bytes(broker.key.read_bytes() + broker.certificate.read_bytes())
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "sasl.enabled.mechanisms": SCRAM,
            **{
                f"listener.name.{name}.{SCRAM.lower()}.sasl.jaas.config": login
                for name in ("sasl_plaintext", "sasl_ssl")
            },
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority.certificate,
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def java_options(self) -> list[str]:
        """Return options of the brokers' JVMs."""
        return []

    def format_arguments(self) -> list[str]:
        """Return what the storage tool is told: the users."""
        return [f"--add-scram={SCRAM}=[name={name},password={word}]" for name, word in self._users.items()]


def allow(
    bootstrap_servers: str,
    user: str,
    rules: Iterable[tuple[ResourceType, str, AclOperation]],
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> list[AclBinding]:
    """Let a user do these things to resources, or deny them; names that end in * are prefixes. Return the rules."""
    bindings = [
        AclBinding(
            kind,
            name.removesuffix("*") or "*",
            ResourcePatternType.PREFIXED if name.endswith("*") and name != "*" else ResourcePatternType.LITERAL,
            f"User:{user}", "*", operation, permission,
        )
        for kind, name, operation in rules
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_acls(bindings).values():
        future.result(30)
    return bindings


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signing_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.now(timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
