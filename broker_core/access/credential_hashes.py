"""Hashes of passwords and tokens, as the policy document holds them.

scrypt$<n>$<r>$<p>$<salt>$<hash>    a password (RFC 7914); salt and hash in base64
sha256$<hex>                        a token: 256 random bits need no slow hash, and can be looked up by it
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

_N, _R, _P = 2**14, 8, 1
_MAX_MEMORY = 64 * 1024 * 1024
"""Bytes that one check may take: a document can't ask for more."""
MAX_SECRET = 1_024
"""Characters of a password or a token."""


def hash_password(password: str) -> str:
    """What to put into the document for a password. Takes tens of milliseconds and 16 MiB, on purpose."""
    salt = secrets.token_bytes(16)
    made = hashlib.scrypt(_bytes(password), salt=salt, n=_N, r=_R, p=_P, maxmem=_MAX_MEMORY)
    return f"scrypt${_N}${_R}${_P}${_text(salt)}${_text(made)}"


def verify_password(password: str, hashed: str) -> bool:
    """Whether a password is the one that was hashed. As slow as hash_password(): never on the event loop."""
    n, r, p, salt, known = _parts(hashed)
    found = hashlib.scrypt(_bytes(password), salt=salt, n=n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=len(known))
    return hmac.compare_digest(found, known)


def make_token() -> str:
    """A new token; only its hash is kept."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What to put into the document for a token."""
    return f"sha256${hashlib.sha256(_bytes(token)).hexdigest()}"


def password_hash_problem(hashed: str) -> str:
    """What is wrong with the hash of a password; "" when nothing is."""
    try:
        n, r, p, salt, known = _parts(hashed)
    except ValueError:
        return "it isn't scrypt$<n>$<r>$<p>$<salt>$<hash>"
    if n < 2 or n & (n - 1) or not 1 <= r <= 64 or not 1 <= p <= 16 or 128 * r * (n + p + 2) > _MAX_MEMORY:
        return "its cost isn't within the limits"
    return "" if len(salt) >= 8 and 16 <= len(known) <= 128 else "its salt or hash is too short"


def token_hash_problem(hashed: str) -> str:
    """What is wrong with the hash of a token; "" when nothing is."""
    kind, _, digits = hashed.partition("$")
    fine = kind == "sha256" and len(digits) == 64 and set(digits) <= set("0123456789abcdef")
    return "" if fine else "it isn't sha256$<64 hexadecimal digits>"


def _parts(hashed: str) -> tuple[int, int, int, bytes, bytes]:
    kind, *fields = hashed.split("$")
    if kind != "scrypt" or len(fields) != 5:
        raise ValueError(kind)
    n, r, p = map(int, fields[:3])
    try:
        salt, known = (base64.b64decode(field, validate=True) for field in fields[3:])
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None
    return n, r, p, salt, known


def _bytes(secret: str) -> bytes:
    return secret.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
