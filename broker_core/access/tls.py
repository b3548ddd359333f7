"""TLS of a transport: contexts from the files that its settings name, and the names in a client's certificate."""

from __future__ import annotations

import ssl

from cryptography import x509
from cryptography.x509.oid import NameOID

from broker_core.config import TlsSettings
from broker_core.errors import OperatorError


def server_context(settings: TlsSettings, kind: type[ssl.SSLContext] = ssl.SSLContext) -> ssl.SSLContext:
    """The context of a transport: TLS 1.2 or newer; with a `client_ca` clients must show a certificate of it.

    Reads the files. Raises OperatorError bad_certificate. `kind` is the class to make it of.
    """
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key, _no_passphrase)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as problem:  # an SSLError is an OSError
        raise bad_certificate_error(settings, problem) from None
    return context


def bad_certificate_error(settings: TlsSettings, problem: Exception) -> OperatorError:
    """The error for files that can't be used."""
    return OperatorError(
        "bad_certificate",
        f"The certificate {settings.certificate} with its key can't be used: {problem}.",
        "Name PEM files that the broker may read: the chain, its key without a passphrase, the clients' authorities.",
    )


def _no_passphrase() -> str:
    # Without this a key with a passphrase would ask for it at the terminal and hold the broker.
    raise ValueError("the key has a passphrase")


def certificate_names(certificate: bytes | None) -> frozenset[str]:
    """Common names and alternative names (DNS, e-mail, URI) of a certificate in DER. It was verified by the handshake."""
    if not certificate:
        return frozenset()
    parsed = x509.load_der_x509_certificate(certificate)
    names = {str(name.value) for name in parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
    try:
        others = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset(names)
    for kind in (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier):
        names.update(others.get_values_for_type(kind))
    return frozenset(names)
