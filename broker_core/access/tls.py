"""TLS of transports: server contexts from PEM files, and the names in a client's certificate."""

from __future__ import annotations

import ssl

from cryptography import x509
from cryptography.x509.oid import NameOID

from broker_core.config import TlsSettings
from broker_core.errors import OperatorError


def make_server_context(settings: TlsSettings, kind: type[ssl.SSLContext] = ssl.SSLContext) -> ssl.SSLContext:
    """Create the TLS context of a transport, for TLS 1.2 or newer.

    If the settings have a `client_ca`, clients must show a certificate of it.

    Args:
        settings: Paths of the PEM files, which are read.
        kind: Class of the context.

    Raises:
        OperatorError: `bad_certificate`.
    """
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key, _reject_passphrase)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as problem:  # an SSLError is an OSError
        raise bad_certificate_error(settings, problem) from None
    return context


def bad_certificate_error(settings: TlsSettings, problem: Exception) -> OperatorError:
    """Return the error for certificate files that cannot be used."""
    return OperatorError(
        "bad_certificate",
        f"The certificate {settings.certificate} with its key can't be used: {problem}.",
        "Name PEM files that the broker may read: the chain, its key without a passphrase, the clients' "
        "authorities.",
    )


def _reject_passphrase() -> str:
    # Without this callback, OpenSSL would ask for the passphrase at the terminal and block the broker.
    raise ValueError("the key has a passphrase")


def certificate_names(certificate: bytes | None) -> frozenset[str]:
    """Return the common names and alternative names (DNS, e-mail, URI) of a certificate in DER.

    The TLS handshake has verified the certificate. Returns an empty set without a certificate.
    """
    if not certificate:
        return frozenset()
    parsed = x509.load_der_x509_certificate(certificate)
    names = {str(name.value) for name in parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
    try:
        alternative_names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset(names)
    for kind in (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier):
        names.update(alternative_names.get_values_for_type(kind))
    return frozenset(names)
