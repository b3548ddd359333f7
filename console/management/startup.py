"""Startup shared by `up` and `demo`: preparation, checks, and all processes under the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Sequence
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connection
from django.utils import timezone

from broker_core import safe_text
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.errors import OperatorError
from broker_core.private_files import restrict_tree_permissions
from console.broker_addresses import format_broker_name
from console.database_limits import database_error, limit_waits
from console.management import banner
from console.queue_names import journal_queue
from console.services import policies, rollouts
from console.services.actors import SYSTEM
from console.services.journal_directories import policy_file
from console.supervisor import ports, readiness, redis_source, socket_paths
from console.supervisor.child_specs import ChildSpec, Installation, all_children
from console.supervisor.supervisor import Supervisor

# Environment variable for the port of each standard transport. If it is unset, the policy's port applies.
PORT_VARIABLES = {
    "tcp": "SLUICE_TCP_PORT",
    "websocket": "SLUICE_WEBSOCKET_PORT",
    "stomp": "SLUICE_STOMP_PORT",
    "stomp-ws": "SLUICE_STOMP_WS_PORT",
}


def print_line(sentence: str) -> None:
    """Print a sentence with the time for the operator.

    A terminal that is closed must not stop the brokers.
    """
    with contextlib.suppress(OSError):
        safe_text.print_line(f"{time.strftime('%H:%M:%S')} {sentence}")


def lock_home() -> TextIOWrapper | None:
    """Lock the data directory until the returned file is closed; None if another supervisor has the lock."""
    file = (settings.SLUICE_HOME / "run" / "up.lock").open("a", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def prepare(*, console: bool = True) -> PolicyDocument:
    """Prepare everything that processes need before they start: Redis, database, free ports, an operator.

    A broker with a policy on disk starts although the database is away.

    Args:
        console: Whether the console runs on this machine.

    Returns:
        The policy that the broker will run.

    Raises:
        OperatorError: `redis_away`, `port_taken`, or an error of the database without a policy on disk.
    """
    if settings.SLUICE_RUN_DIRECTORY != settings.SLUICE_HOME / "run":
        socket_paths.prepare_directory(settings.SLUICE_RUN_DIRECTORY)
    directories = (
        settings.SLUICE_JOURNAL_DIRECTORY,
        settings.SLUICE_ARCHIVE_DIRECTORY,
        settings.SLUICE_SPOOL_DIRECTORY,
    )
    for problem in restrict_tree_permissions((settings.SLUICE_HOME, *directories)):
        print_line(problem)
    check_external_redis()
    call_command("check", fail_level="ERROR", stdout=StringIO())
    answers = True
    try:
        policy = prepare_database()
    except OperatorError as problem:
        if not problem.code.startswith("database_"):
            raise
        stored = policy_file(settings.SLUICE_INSTANCE).load()
        if stored is None:
            raise
        print_line(problem.sentence)
        print_line(
            "Starting without migrations and without the ports of the environment. A broker "
            f"without the database runs revision {stored.revision} from this disk. After an "
            "upgrade, run `manage.py migrate` when the database responds."
        )
        policy, answers = stored.document, False
    check_ports(policy.transports, console=console)
    if console and answers:
        call_command("createoperator")
    return policy


def prepare_database() -> PolicyDocument:
    """Migrate the database, create the default policy if there is none, and return the policy in force.

    Raises:
        OperatorError: `database_away`, `database_locked`, `database_read_only` or `database_full`.
    """
    limit_waits(statements=False)
    check_database()
    try:
        call_command("migrate", interactive=False, verbosity=0)
        policy = policy_in_force()
    except DatabaseError as problem:
        raise database_error(problem) from problem
    return policy


def check_external_redis() -> None:
    """Raise OperatorError `redis_away` if REDIS_URL is set and no Redis answers there.

    Without this check several processes would report it separately.
    """
    url = os.environ.get("REDIS_URL", "")
    problem = readiness.external_redis_problem(url) if url else None
    if problem:
        sentence = f"REDIS_URL is set, but Redis doesn't answer: {problem}."
        raise OperatorError("redis_away", sentence, "Start Redis, or unset REDIS_URL.")


def check_database() -> None:
    """Raise OperatorError `database_away`, instead of Django's traceback, if the database can't be used."""
    try:
        connection.ensure_connection()
    except OperationalError as problem:
        sentence = f"The database refused the connection: {' '.join(str(problem).split())}"
        raise OperatorError(
            "database_away", sentence, "Start the database, or correct DATABASE_URL."
        ) from None


def policy_in_force() -> PolicyDocument:
    """Return the policy that the broker will load, after changes of ports that environment variables set."""
    document = PolicyDocument.from_dict(policies.document_in_force(settings.SLUICE_INSTANCE))
    for transport in document.transports:
        variable = PORT_VARIABLES.get(transport.name, "")
        port = os.environ.get(variable, "")
        if port and int(port) != transport.port:
            reason = f"{variable}={port} was set when Sluice was started"
            _stop_rollout(reason)
            policies.change_transport(SYSTEM, transport.name, {"port": int(port)}, reason=reason)
    return PolicyDocument.from_dict(policies.document_in_force(settings.SLUICE_INSTANCE))


def _stop_rollout(reason: str) -> None:
    """Stop a staged rollout. Otherwise a changed port would put the staged revision in force everywhere."""
    instance = policies.ensure_instance(settings.SLUICE_INSTANCE)
    with contextlib.suppress(OperatorError):  # no_rollout
        rollouts.stop(SYSTEM, instance, reason=reason)


def check_ports(transports: Sequence[TransportSettings], *, console: bool = True) -> None:
    """Raise OperatorError `port_taken`, with a sentence for each address of console or transport in use."""
    web = (settings.SLUICE_WEB_HOST, settings.SLUICE_WEB_PORT, "Set SLUICE_WEB_PORT to a free port")
    requests = [ports.PortRequest("the console", *web)] if console else []
    for transport in transports:
        variable = PORT_VARIABLES.get(transport.name)
        move = f"Set {variable} to a free port" if variable else "Stop the process that uses it"
        if transport.enabled:
            port = transport.port + settings.SLUICE_PORTS_APART if transport.port else 0
            requests.append(ports.PortRequest(f"transport {transport.name}", transport.host, port, move))
    check_ports_free(requests)


def check_ports_free(requests: Sequence[ports.PortRequest]) -> None:
    """Raise OperatorError `port_taken` unless all addresses are free."""
    found = ports.port_problems(requests, ports.refusal_reason, ports.port_owner)
    if found:
        raise OperatorError("port_taken", " ".join(found), "Nothing was started.")


def installation_from_settings() -> Installation:
    """Return the facts for the children's command lines, from the settings and the environment."""
    run = settings.SLUICE_RUN_DIRECTORY
    redis_url = os.environ.get("REDIS_URL", "")
    redis = redis_source.choose_redis(
        redis_url, redis_source.redis_on_path(), redis_source.bundled_redis(), run / "redis.sock"
    )
    return Installation(
        sys.executable,
        settings.SLUICE_HOME,
        run,
        settings.SLUICE_INSTANCE,
        settings.SLUICE_WEB_HOST,
        settings.SLUICE_WEB_PORT,
        redis,
        settings.SLUICE_WEB_TLS,
        "" if settings.SLUICE_CONSOLE else local_journal_queue(),
    )


def local_journal_queue() -> str:
    """Return the queue of this machine's journal, for a console on another machine."""
    group = settings.SLUICE_GROUP
    return journal_queue(format_broker_name(settings.SLUICE_INSTANCE, group.member if group else ""))


def check_console_elsewhere() -> None:
    """Raise OperatorError `console_elsewhere` unless the remote console's database and Redis are named.

    A machine with its own database and Redis would never show up in that console.
    """
    missing = [name for name in ("DATABASE_URL", "REDIS_URL") if not os.environ.get(name)]
    if missing:
        raise OperatorError(
            "console_elsewhere",
            "SLUICE_CONSOLE=no requires a console on another machine, but there is no "
            f"{' and no '.join(missing)}.",
            "Set the database and the Redis of the console, or unset SLUICE_CONSOLE.",
        )


def child_environment(at: Installation) -> dict[str, str]:
    """Return the children's environment: this process's, and values that all children must share."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": os.environ.get("DJANGO_SETTINGS_MODULE", "console.project.settings"),
        "SLUICE_HOME": str(at.home),
        "REDIS_URL": at.redis.url,
        "PYTHONUNBUFFERED": "1",
    }


def supervise(
    specs: Sequence[ChildSpec], at: Installation, when_ready: Callable[[], None], **options: Any
) -> int:
    """Run the children until they are stopped, and return the exit code."""
    directory = Path(settings.BASE_DIR)
    log_directory = at.home / "log"
    supervisor = Supervisor(
        specs, directory, child_environment(at), log_directory, print_line, when_ready, **options
    )
    return asyncio.run(supervisor.run())


def start_everything(
    lock: TextIOWrapper,
    policy: PolicyDocument,
    at: Installation,
    extra: Sequence[ChildSpec] = (),
    *,
    show_output: bool = False,
    after: str = "",
) -> int:
    """Run all of Sluice and `extra` children until they are stopped, and return the exit code.

    Args:
        lock: The lock of the data directory, which the caller holds.
        policy: The policy, for the banner.
        at: The installation.
        extra: Further children.
        show_output: Whether the children's output appears in the terminal too.
        after: Text below the banner.
    """
    assert not lock.closed
    print_redis(at.redis)
    if at.run_directory != at.home / "run":
        print_line(f"The path {at.home} is too long for Unix sockets. They are in {at.run_directory}")
    text = banner.startup_text(at, policy, Path(settings.BASE_DIR)) + after
    return supervise(
        [*all_children(at), *extra], at, lambda: safe_text.print_block(text), show_output=show_output
    )


def print_redis(source: redis_source.RedisSource) -> None:
    """Print the choice of Redis, and a warning if the bundled one is old."""
    print_line(source.sentence())
    if source.kind == "bundled" and source.executable is not None:
        version = redis_source.redis_version(source.executable)
        if warning := redis_source.age_warning(source.kind, version, timezone.now().date()):
            print_line(warning)


def require_single_instance() -> TextIOWrapper:
    """Return the lock of the data directory.

    Raises OperatorError `already_up` if another supervisor holds it.
    """
    lock = lock_home()
    if lock is None:
        raise OperatorError(
            "already_up",
            f"A supervisor is already running Sluice from {settings.SLUICE_HOME}.",
            "Stop it with Ctrl-C, or set SLUICE_HOME to another directory.",
        )
    return lock


def start_installation(*, show_output: bool = False) -> int:
    """Run `make up` until it is stopped, and return the exit code."""
    with require_single_instance() as lock:
        if not settings.SLUICE_CONSOLE:
            check_console_elsewhere()
        policy = prepare(console=settings.SLUICE_CONSOLE)
        return start_everything(lock, policy, installation_from_settings(), show_output=show_output)
