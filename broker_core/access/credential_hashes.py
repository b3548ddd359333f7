"""Hashes of passwords and tokens, in the format of the policy document.

scrypt$<n>$<r>$<p>$<salt>$<hash>    password (RFC 7914); salt and hash in base64
sha256$<hex>                        token: 256 random bits need no slow hash, and the hash serves as a key
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

_N, _R, _P = 2**14, 8, 1
_MAX_MEMORY = 64 * 1024 * 1024
"""Maximum bytes of memory for one verification, whatever a document asks for."""
MAX_SECRET_CHARACTERS = 1_024
"""Maximum characters of a password or token."""


def hash_password(password: str) -> str:
    """Return the hash of a password for the policy document.

    Takes tens of milliseconds and 16 MiB on purpose.
    """
    salt = secrets.token_bytes(16)
    made = hashlib.scrypt(_to_bytes(password), salt=salt, n=_N, r=_R, p=_P, maxmem=_MAX_MEMORY)
    return f"scrypt${_N}${_R}${_P}${_to_base64(salt)}${_to_base64(made)}"


def verify_password(password: str, hashed: str) -> bool:
    """Return whether a password matches a hash.

    As slow as hash_password(): never call it on the event loop.
    """
    n, r, p, salt, expected = _parse_password_hash(hashed)
    computed = hashlib.scrypt(
        _to_bytes(password), salt=salt, n=n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=len(expected)
    )
    return hmac.compare_digest(computed, expected)


def make_token() -> str:
    """Return a new random token. Only its hash must be stored."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return the hash of a token for the policy document."""
    return f"sha256${hashlib.sha256(_to_bytes(token)).hexdigest()}"


def password_hash_problem(hashed: str) -> str:
    """Return a phrase that says why a password hash is invalid, or "" if it is valid."""
    try:
        n, r, p, salt, expected = _parse_password_hash(hashed)
    except ValueError:
        return "it isn't scrypt$<n>$<r>$<p>$<salt>$<hash>"
    if n < 2 or n & (n - 1) or not 1 <= r <= 64 or not 1 <= p <= 16 or 128 * r * (n + p + 2) > _MAX_MEMORY:
        return "its cost isn't within the limits"
    return "" if len(salt) >= 8 and 16 <= len(expected) <= 128 else "its salt or hash is too short"


def token_hash_problem(hashed: str) -> str:
    """Return a phrase that says why a token hash is invalid, or "" if it is valid."""
    kind, _, digits = hashed.partition("$")
    is_valid = kind == "sha256" and len(digits) == 64 and set(digits) <= set("0123456789abcdef")
    return "" if is_valid else "it isn't sha256$<64 hexadecimal digits>"


def _parse_password_hash(hashed: str) -> tuple[int, int, int, bytes, bytes]:
    """Return n, r, p, salt and hash of a password hash. Raises ValueError if it has another format."""
    kind, *fields = hashed.split("$")
    if kind != "scrypt" or len(fields) != 5:
        raise ValueError(kind)
    n, r, p = map(int, fields[:3])
    try:
        salt, expected = (base64.b64decode(field, validate=True) for field in fields[3:])
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None
    return n, r, p, salt, expected


def _to_bytes(secret: str) -> bytes:
    return secret.encode("utf-8", "surrogatepass")


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
