"""TLS of a client: which authorities it trusts, and the certificate that it shows."""

from __future__ import annotations

import ssl
from pathlib import Path

from broker_core.errors import OperatorError

Tls = ssl.SSLContext | str | Path | None


def tls_context(
    ca: str | Path | None = None, certificate: str | Path | None = None, key: str | Path | None = None
) -> ssl.SSLContext:
    """A context that trusts the authorities in `ca` (PEM; default the system's) and shows a certificate, if there is one.

    Raises OperatorError bad_certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as problem:
        raise OperatorError(
            "bad_certificate",
            f"The certificates {ca or ''} {certificate or ''} can't be used: {problem}.",
            "Name PEM files.",
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def context_of(tls: Tls) -> ssl.SSLContext:
    """The context itself, or one that trusts what the file holds; the system's authorities without either."""
    return tls if isinstance(tls, ssl.SSLContext) else tls_context(tls)
