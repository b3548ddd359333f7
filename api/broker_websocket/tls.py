"""Twisted's TLS contexts of WebSocket transports, with the same settings and requirements as asyncio's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.internet.ssl import (
    AcceptableCiphers,
    Certificate,
    CertificateOptions,
    TLSVersion,
    trustRootFromCertificates,
)

from broker_core.access.tls import bad_certificate_error, certificate_names, make_server_context
from broker_core.config import TlsSettings


def context_factory(settings: TlsSettings) -> CertificateOptions:
    """Return the TLS options for Twisted's endpoint.

    Reads the certificate and key files. Raises OperatorError `bad_certificate`.
    """
    plain = make_server_context(settings)  # refuses the same files with the same error texts
    suites = ":".join(suite["name"] for suite in plain.get_ciphers())
    try:
        key = load_pem_private_key(Path(settings.key).read_bytes(), None)
        first, *others = _certificates(settings.certificate)
        trusted = _certificates(settings.client_ca) if settings.client_ca is not None else None
        return CertificateOptions(
            privateKey=crypto.PKey.from_cryptography_key(key),  # type: ignore[arg-type]  # or TypeError
            certificate=first,
            extraCertChain=others,
            raiseMinimumTo=TLSVersion.TLSv1_2,
            acceptableCiphers=AcceptableCiphers.fromOpenSSLCipherString(suites),
            # Setting a trust root also makes the handshake require a client certificate.
            trustRoot=trustRootFromCertificates([Certificate(one) for one in trusted]) if trusted else None,
        )
    except (OSError, ValueError, TypeError, SSL.Error, crypto.Error) as problem:
        raise bad_certificate_error(settings, problem) from None


def _certificates(path: str) -> list[crypto.X509]:
    return list(map(crypto.X509.from_cryptography, x509.load_pem_x509_certificates(Path(path).read_bytes())))


def peer_names(transport: Any) -> frozenset[str]:
    """Return the names in the peer's certificate; empty for a plain connection or without a certificate."""
    shown = getattr(transport, "getPeerCertificate", lambda: None)()
    return (
        certificate_names(crypto.dump_certificate(crypto.FILETYPE_ASN1, shown))
        if shown is not None
        else frozenset()
    )
