"""SLUICE_HOME, the directory of all files of an installation, and settings derived from it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.exceptions import ImproperlyConfigured

from broker_core.config import TlsSettings
from broker_core.errors import OperatorError
from broker_core.group.settings import GroupSettings, read_settings
from broker_core.private_files import PRIVATE_UMASK, restrict_permissions
from console.access.networks import Network, parse_networks
from console.broker_addresses import BrokerAddress, read_addresses

FOLDERS = ("run", "journal", "archive", "spool", "lake", "static")


def prepare_home(home: Path) -> Path:
    """Create the data directory and its folders for this user only, and return its absolute path.

    Also sets the process's umask, because every process of Sluice reads the settings.

    Raises:
        ImproperlyConfigured: other users can access the directory, and that can't be changed.
    """
    os.umask(PRIVATE_UMASK)
    home = home.expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    try:
        restrict_permissions(home)
        for name in FOLDERS:
            (home / name).mkdir(exist_ok=True)
            restrict_permissions(home / name)
    except PermissionError as problem:
        raise ImproperlyConfigured(
            f"{problem} Only the user that runs Sluice may access SLUICE_HOME: change its owner, "
            "and set mode 0700."
        ) from problem
    return home


def reserved_directories(home: Path, base: Path, *directories: Path) -> tuple[Path, ...]:
    """Return the paths that no directory of a policy may overlap: code, and files of other parts."""
    files = (home / name for name in ("run", "log", "static", "state", "demo", "secret_key"))
    code = (
        base / name for name in ("api", "broker_core", "console", "pipeline", "templates", ".venv", ".git")
    )
    return (*files, *code, *directories)


def secret_key(home: Path) -> str:
    """Return the installation's secret key, stored in SLUICE_HOME/secret_key with mode 600.

    Create it if needed.

    Several processes may start together on a new machine. Each writes a complete temporary file and links it
    to the final name. The link succeeds for one of them, and every process then reads that key.
    """
    path = home / "secret_key"
    if not path.exists():
        temporary = home / f".secret_key.{os.getpid()}.{secrets.token_hex(4)}"
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii"
        ) as file:
            file.write(secrets.token_urlsafe(48))
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return path.read_text(encoding="ascii").strip()


def celery_broker_url(redis_url: str) -> str:
    """Return a Redis URL in Celery's form: kombu says `redis+socket://` where redis-py says `unix://`."""
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://")
    return redis_url


def web_tls_files(certificate: str, key: str) -> TlsSettings | None:
    """Return the console's certificate and key, or None.

    Raises ImproperlyConfigured for one without the other.
    """
    if bool(certificate) != bool(key):
        raise ImproperlyConfigured("Set SLUICE_WEB_TLS_CERTIFICATE and SLUICE_WEB_TLS_KEY both, or neither.")
    # Absolute paths, but links are not resolved: a renewed certificate is usually a changed link.
    return TlsSettings(str(Path(certificate).absolute()), str(Path(key).absolute())) if certificate else None


def trusted_proxies(texts: list[str]) -> tuple[Network, ...]:
    """Return the networks of SLUICE_TRUSTED_PROXIES. Raises ImproperlyConfigured for an invalid one."""
    try:
        return parse_networks(texts)
    except ValueError as problem:
        raise ImproperlyConfigured(f"SLUICE_TRUSTED_PROXIES: {problem}.") from problem


def group_settings(
    instance: str, member: str, engines: list[str], copies: int, hold_ms: int, ca: str
) -> GroupSettings | None:
    """Return the settings SLUICE_GROUP_*, or None without a group. Raises ImproperlyConfigured."""
    try:
        return read_settings(instance, member, engines, copies, hold_ms, ca)
    except OperatorError as problem:
        raise ImproperlyConfigured(f"{problem.sentence} {problem.fix}") from problem


def broker_addresses(texts: list[str], run: Path) -> tuple[BrokerAddress, ...]:
    """Return the broker addresses of SLUICE_BROKERS. Raises ImproperlyConfigured."""
    try:
        return read_addresses(texts, run)
    except OperatorError as problem:
        raise ImproperlyConfigured(f"{problem.sentence} {problem.fix}") from problem


def local_zone(name: str) -> ZoneInfo:
    """Return the time zone for local times of schedules: the named one, else this machine's, else UTC."""
    link = os.path.realpath("/etc/localtime")
    for known in (name, os.environ.get("TZ", "").lstrip(":"), link.partition("/zoneinfo/")[2]):
        if known:
            try:
                return ZoneInfo(known)
            except (ZoneInfoNotFoundError, ValueError):
                if known == name:
                    raise
    return ZoneInfo("UTC")
