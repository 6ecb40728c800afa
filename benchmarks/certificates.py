"""An authority of one's own, and a certificate of it for this machine's loopback address."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files a server on loopback shows, and the one its callers believe."""

    ca_file: Path
    chain: Path
    key: Path

    def server_context(self, *protocols: str) -> ssl.SSLContext:
        """How the server speaks: TLS 1.2 or newer, these protocols."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.chain, self.key)
        context.set_alpn_protocols(list(protocols))
        return context


def make_certificates(directory: Path) -> Certificates:
    """Make the authority and the certificate in this directory."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority, server = _name("Postroad test authority"), _name("Postroad test server")
    usual = x509.BasicConstraints(ca=True, path_length=0)
    root = _builder(authority, authority, authority_key).add_extension(usual, critical=True)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS)), x509.DNSName("localhost")])
    leaf = _builder(server, authority, server_key).add_extension(here, critical=False)
    made = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    made.ca_file.write_bytes(_signed(root, authority_key))
    made.chain.write_bytes(_signed(leaf, authority_key))
    made.key.write_bytes(private_pem(server_key).encode())
    return made


def private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """The key as PEM, the form in which Apple hands out its own."""
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, serialization.NoEncryption()).decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=2))


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
