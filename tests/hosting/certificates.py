# SPDX-License-Identifier: Apache-2.0
"""Certificates for the tests, of an authority of their own."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Issues certificates into a folder.

    Args:
        folder: where they and their keys are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the authority")])
        self.pem = self._signed("authority", self.name, self.key, is_authority=True)

    def _signed(self, name: str, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *,
                is_authority: bool = False) -> Path:
        day = datetime.timedelta(days=1)
        now = datetime.datetime.now(datetime.UTC)
        builder = (x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
                   .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True))
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        path = self.folder / f"{name}.pem"
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def context(self, name: str, *, server: bool) -> ssl.SSLContext:
        """What the node `name` listens with, or connects with: both sides show a certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = self._signed(name, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")]), key)
        secret = self.folder / f"{name}.key"
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                             serialization.NoEncryption()))
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(self.pem)
        made.load_cert_chain(pem, secret)
        return made
