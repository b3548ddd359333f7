"""Django system checks of the configuration. They report problems at start that would stop Sluice later."""

from __future__ import annotations

import os
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from broker_core.access.tls import make_server_context
from broker_core.config.document import paths_overlap
from broker_core.errors import OperatorError
from broker_core.names import is_name

# Linux limits the path of a Unix socket to 108 bytes, with the terminating zero.
MAX_SOCKET_PATH = 107


@register()
def check_instance_name(**kwargs: Any) -> list[CheckMessage]:
    """Check that brokers accept the instance's name."""
    if is_name(settings.SLUICE_INSTANCE):
        return []
    return [
        Error(
            f"SLUICE_INSTANCE is {settings.SLUICE_INSTANCE!r}.",
            hint="Use 1 to 64 letters, digits, dots, dashes or underscores.",
            id="sluice.E001",
        )
    ]


@register()
def check_socket_path(**kwargs: Any) -> list[CheckMessage]:
    """Check that the control socket's path is not too long for the operating system."""
    path = settings.SLUICE_RUN_DIRECTORY / f"{settings.SLUICE_INSTANCE}.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return []
    return [
        Error(
            f"The control socket's path {path} is longer than {MAX_SOCKET_PATH} bytes.",
            hint="Set SLUICE_HOME to a shorter path.",
            id="sluice.E002",
        )
    ]


@register()
def check_home_writable(**kwargs: Any) -> list[CheckMessage]:
    """Check that the data directory is writable."""
    if os.access(settings.SLUICE_HOME, os.W_OK | os.X_OK):
        return []
    return [
        Error(
            f"SLUICE_HOME ({settings.SLUICE_HOME}) can't be written to.",
            hint="Make the directory writable for the user that runs Sluice, or set SLUICE_HOME to "
            "another directory.",
            id="sluice.E003",
        )
    ]


@register()
def check_web_certificate(**kwargs: Any) -> list[CheckMessage]:
    """Check that the console's certificate exists and matches its key."""
    if settings.SLUICE_WEB_TLS is None:
        return []
    try:
        make_server_context(settings.SLUICE_WEB_TLS)
    except OperatorError as problem:
        return [Error(problem.sentence, hint=problem.fix, id="sluice.E004")]
    return []


@register()
def check_oidc(**kwargs: Any) -> list[CheckMessage]:
    """Check that the packages for logins at an identity provider are installed if one is configured."""
    if not settings.SLUICE_OIDC_ISSUER or all(map(find_spec, ("authlib", "requests"))):
        return []
    return [
        Error(
            "SLUICE_OIDC_ISSUER is set, but the packages for OpenID Connect aren't installed.",
            hint="pip install -r requirements-oidc.txt",
            id="sluice.E005",
        )
    ]


@register()
def check_directories(**kwargs: Any) -> list[CheckMessage]:
    """Check that configured directories do not overlap each other, nor directories that are served, run or
    logged.
    """
    directories = {
        name: Path(getattr(settings, name))
        for name in (
            "SLUICE_JOURNAL_DIRECTORY",
            "SLUICE_ARCHIVE_DIRECTORY",
            "SLUICE_SPOOL_DIRECTORY",
            "SLUICE_LAKE_DIRECTORY",
            "SLUICE_JOBS_DIRECTORY",
        )
    }
    reserved = settings.SLUICE_RESERVED_DIRECTORIES
    pairs = [(name, path, other) for name, path in directories.items() for other in reserved]
    pairs += [
        (name, path, directories[other])
        for name, other in combinations(directories, 2)
        if {name, other} != {"SLUICE_JOURNAL_DIRECTORY", "SLUICE_ARCHIVE_DIRECTORY"}
        for path in (directories[name],)
    ]
    found = [f"{name}: {path} overlaps {other}." for name, path, other in pairs if paths_overlap(path, other)]
    logs = settings.SLUICE_HOME / "log"
    inside = [("SLUICE_DIRECTORY_ROOTS", Path(root), reserved) for root in settings.SLUICE_DIRECTORY_ROOTS]
    protected = (*(one for one in reserved if one != logs), *directories.values())
    inside += [
        ("SLUICE_ACTION_FOLDERS", Path(folder), protected) for folder in settings.SLUICE_ACTION_FOLDERS
    ]
    found += [
        f"{name}: {path} is inside {other}."
        for name, path, others in inside
        for other in others
        if path.resolve().is_relative_to(other.resolve())
    ]
    return [Error(one, hint="Use a separate directory for each.", id="sluice.E006") for one in found]
