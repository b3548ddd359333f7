"""Policies as files, for command, API and page: Sluice's own YAML, and configurations of other brokers."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from django.db import transaction

from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.topics import TopicPattern
from console.access.policy_secrets import redact_secrets
from console.models import Action, Instance, PolicyDraft, PolicyRevision
from console.services import drafts, policies, policy_import
from console.services.actions import editor
from console.services.actors import Actor
from console.services.policy_import import ImportReport

YAML = "yaml"
SYSTEMS = (YAML, *policy_import.READERS)
MAX_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a YAML file's text in UTF-8. A file may have many users."""
MAX_READ_BYTES = 2 * MAX_BYTES + len(codecs.BOM_UTF16)
"""Maximum bytes to read of a file. In UTF-16 a text takes at most twice the bytes that it takes in UTF-8."""
MAX_YAML_DEPTH: Final = 32
"""Maximum lists and mappings inside each other in a YAML file."""
MAX_YAML_NODES: Final = 250_000
"""Maximum values, keys, lists and mappings of a YAML file. They take some 2 s of CPU time."""
MAX_YAML_NUMBER: Final = 100
"""Maximum characters of a number. PyYAML takes quadratic time for a number in base 60, such as 1:59:59."""
_SECTIONS: Final = frozenset(("instance", "transports", "pool", "client_policy", "rules", "access"))
"""Sections of which a policy has at least one."""
MAX_NAMED = 10
"""Maximum topics that a warning names."""
MAX_SENT = policy_import.MAX_TEXT_BYTES
"""Maximum bytes, in UTF-8, of a text that an operator pastes, uploads or sends through the API."""


_DECLARED: Final = re.compile(rb"""\s*<\?xml[^>]{0,80}?\sencoding\s*=\s*["']([\w.:-]{1,40})["']""")
_XML_IN_UTF_16: Final = {b"<\0?\0": "utf-16-le", b"\0<\0?": "utf-16-be"}
"""First bytes of XML in UTF-16 without a byte order mark."""
_OF_SEVERAL_BYTES: Final = ("utf-16", "utf-32")
"""Encodings that a declaration in bytes of ASCII can't be in."""


def decode_file(data: bytes) -> str:
    """Return a file's text.

    The encoding is UTF-16 if the first bytes show it, else that of an XML declaration, else UTF-8.

    Raises:
        OperatorError: `bad_import`.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    else:
        encoding = _XML_IN_UTF_16.get(data[:4]) or _declared_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as problem:
        raise OperatorError(
            "bad_import",
            f"The file isn't text in {encoding.upper()}: byte {problem.start + 1} can't be read.",
            "Save it as UTF-8.",
        ) from None


def _declared_encoding(data: bytes) -> str:
    """Return the encoding that an XML declaration names if Python has it, else UTF-8."""
    declared = _DECLARED.match(data)
    if declared is None:
        return "utf-8"
    name = declared[1].decode("ascii", "replace")
    try:
        "".encode(name)  # LookupError for codecs that aren't encodings of text
        known = codecs.lookup(name).name
    except (LookupError, UnicodeError):
        return "utf-8"
    return "utf-8" if known.startswith(_OF_SEVERAL_BYTES) else known


@dataclass(frozen=True, slots=True)
class ParsedPolicyFile:
    """Result of reading a file: a whole policy document, and the outcome for each setting (none for YAML).

    `warnings` are sentences about journaled topics that the document would no longer journal, and about
    variables without values.
    """

    document: dict[str, Any]
    imported: ImportReport = field(default_factory=ImportReport)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of an import: a draft, disabled actions, and the outcome for each setting of the file."""

    draft: PolicyDraft
    actions: list[Action]
    imported: ImportReport
    warnings: tuple[str, ...] = ()


def parse_file(
    instance: Instance, system: str, text: str, values: Mapping[str, str] | None = None
) -> ParsedPolicyFile:
    """Read a policy file.

    YAML is a whole policy; settings of another system are merged into the newest revision. `values` are
    those of variables in another system's file.

    Raises:
        OperatorError: `bad_import` or `nothing_imported`.
    """
    newest = policies.newest_revision(instance).document
    if system == YAML:
        if values:
            raise OperatorError("bad_import", "A policy in YAML has no variables.", "Set none.")
        document = {**read_own_yaml(text), "revision": newest["revision"]}
        return ParsedPolicyFile(document, warnings=_journaling_warnings(newest, document))
    imported = policy_import.import_policy(system, text, values)
    _skip_used_ports(imported, newest)
    _skip_misplaced_directories(imported)
    if imported.is_empty():
        raise imported.nothing_imported_error(policy_import.import_hint(system))
    changes = dict(imported.document)
    if "transports" in changes:
        changes["transports"] = {transport["name"]: transport for transport in changes["transports"]}
    if "rules" in changes:
        changes["rules"] = _merge_rules(newest.get("rules") or [], changes["rules"])
    document = drafts.merge_changes(newest, changes)
    unset = imported.variable_warning()
    warnings = _journaling_warnings(newest, document)
    return ParsedPolicyFile(document, imported, (unset, *warnings) if unset else warnings)


def _merge_rules(newest: list[dict[str, Any]], imported: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest revision's rules and the imported ones, which replace rules of equal name."""
    names = {rule["name"] for rule in imported}
    return [*(rule for rule in newest if rule.get("name") not in names), *imported]


def _journaling_warnings(newest: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a warning if a document no longer journals topics that are journaled now.

    No warning for a document that can't be read.
    """
    try:
        before = PolicyDocument.from_dict(dict(newest)).instance
        after = JournaledTopics(PolicyDocument.from_dict(dict(document)).instance)
    except OperatorError:
        return ()
    lost = [
        f"{entry.topic}{'' if extent == 'all' else ' (a part of it)'}"
        for entry in before.journaled_topics
        if (extent := after.narrowed_from(JournaledTopics(before), TopicPattern.parse(entry.topic)))
    ]
    if not lost:
        return ()
    more = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
    return (
        f"These topics would no longer be journaled: {', '.join(lost[:MAX_NAMED])}{more}. "
        "Bookmark and durable subscriptions and queues get no more messages of these topics; "
        "the preview lists them. Check Journaled topics of the draft.",
    )


def _skip_used_ports(imported: ImportReport, newest: Mapping[str, Any]) -> None:
    """Skip imported transports on a port of an existing transport with another name.

    Only the operator can decide which of the two is meant.
    """
    ports = {transport["port"]: transport["name"] for transport in newest["transports"]}
    for transport in list(imported.document.get("transports", ())):
        name, port = transport["name"], transport["port"]
        if (other := ports.get(port, name)) != name:
            imported.document["transports"].remove(transport)
            imported.undo_part(
                f"transport {name}",
                f"Port {port} is that of the transport {other}. Use that name in the file to change "
                "that transport, or change one of the ports.",
            )
    if not imported.document.get("transports", True):
        del imported.document["transports"]
        imported.undo_part("transports", "No transport of the file was imported.")


def _skip_misplaced_directories(imported: ImportReport) -> None:
    """Skip directories that a policy may not name here: paths of another machine mean nothing on this one."""
    found = imported.document
    named = [("instance", "instance", setting) for setting in ("journal_directory", "archive_directory")]
    named.append(("pool", "pool", "message_disk_path"))
    sources = {"instance": found.get("instance", {}), "pool": found.get("pool", {})}
    for transport in found.get("transports", ()):
        label = f"transport {transport['name']!r}"
        sources[label] = transport.get("pool", {})
        named.append((label, f"transport {transport['name']}", "message_disk_path"))
    for label, part, setting in named:
        if not isinstance(path := sources[label].get(setting), str):
            continue
        if problems := policies.misplaced(f"{label}: {setting}", path):
            del sources[label][setting]
            if label in found and not found[label]:
                del found[label]
            imported.undo_part(part, f"{problems[0]}.", setting)


def make_draft(
    actor: Actor,
    instance: Instance,
    system: str,
    text: str,
    *,
    title: str = "",
    values: Mapping[str, str] | None = None,
) -> ImportResult:
    """Create a draft and disabled actions from a file.

    Raises:
        OperatorError: `bad_import`, `nothing_imported`, and the errors of `create_draft`.
    """
    loaded = parse_file(instance, system, text, values)
    with transaction.atomic():
        actions = make_actions(actor, instance, system, loaded.imported)
        draft = drafts.create_draft(
            actor, title or f"Imported from {system}", document=loaded.document, instance_name=instance.name
        )
    return ImportResult(draft, actions, loaded.imported, loaded.warnings)


def make_actions(actor: Actor, instance: Instance, system: str, imported: ImportReport) -> list[Action]:
    """Create the actions of a file, disabled. An action that can't be created is skipped with its reason.

    Raises:
        OperatorError: `nothing_imported` if no action can be created and the file has nothing else.
    """
    made = []
    for definition in list(imported.actions):
        try:
            made.append(editor.create(actor, instance, {**definition, "enabled": False}))
        except OperatorError as problem:
            imported.actions.remove(definition)
            imported.undo_part(f"action {definition['name']}", f"{problem.sentence} {problem.fix}".strip())
    if system != YAML and imported.is_empty():
        raise imported.nothing_imported_error(policy_import.import_hint(system))
    return made


def dump_yaml(revision: PolicyRevision, *, with_secrets: bool = False) -> str:
    """Return a revision as YAML. Hashes of passwords and tokens read "set" unless `with_secrets`."""
    document = revision.document if with_secrets else redact_secrets(revision.document)
    content = {key: value for key, value in document.items() if key != "revision"}
    title = f"# {revision.instance.name}, revision {revision.number}, by {revision.author}\n"
    return title + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def read_own_yaml(text: str) -> dict[str, Any]:
    """Return the document in a text of `dump_yaml`. A file of another system is recognised.

    Raises:
        OperatorError: `bad_import`.
    """
    hint = policy_import.recognition_hint(text, YAML)
    try:
        document = read_yaml(text)
    except OperatorError as problem:
        problem.fix = hint or problem.fix
        raise
    if hint and not _SECTIONS & document.keys():
        raise OperatorError("bad_import", "The file contains no policy.", hint)
    return document


def _yaml_problem(problem: yaml.YAMLError) -> str:
    """Return a parser's problem with its position, without text of the file: a line may hold a password."""
    if not isinstance(problem, yaml.MarkedYAMLError):
        return str(problem).partition("\n")[0]
    mark = problem.problem_mark or problem.context_mark
    sentence = re.sub(r"'[^']*'|\"[^\"]*\"", "…", problem.problem or "it can't be parsed")
    return f"{sentence} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else sentence


def read_yaml(text: str) -> dict[str, Any]:
    """Return the document in a text of `dump_yaml`.

    Raises OperatorError `bad_import`, also for aliases, and beyond a limit of depth, nodes or numbers.
    """
    policy_import.refuse_large_text(text, MAX_BYTES)
    try:
        _check_yaml_limits(text)
        found = yaml.load(text, _PolicyLoader)  # a subclass of a safe loader
        document = json.loads(json.dumps(found, allow_nan=False))
    except yaml.YAMLError as problem:
        raise OperatorError(
            "bad_import", f"The file isn't YAML: {_yaml_problem(problem)}.", "Start from `policy export`."
        ) from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise OperatorError(
            "bad_import",
            f"The file has a value that a policy can't contain: {problem}.",
            "Start from `policy export`.",
        ) from None
    if not isinstance(document, Mapping):
        raise OperatorError("bad_import", "The file contains no policy.", "Start from `policy export`.")
    return dict(document)


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader in C, which takes a fifth of the time. PyYAML lacks it where it was built without libyaml."""


class _PolicyLoader(_SafeLoader):  # type: ignore[misc]  # one of two classes
    """YAML loader that refuses long numbers."""

    def construct_number(self, node: Any) -> Any:
        """Return the number of a node. Raises ConstructorError if it is too long."""
        if len(node.value) > MAX_YAML_NUMBER:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number has more than {MAX_YAML_NUMBER} characters", node.start_mark
            )
        is_int = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)


for _tag in ("int", "float"):
    _PolicyLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _PolicyLoader.construct_number)


def _check_yaml_limits(text: str) -> None:
    """Raise YAMLError if a text has aliases, or too deep or too many nodes.

    A few lines with aliases can expand to gigabytes. Reading events does not recurse, so it must come before
    the loader, which does, and which crashes the process at some depth.
    """
    depth = nodes = 0
    event: Any  # the stubs have two classes of marks
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        problem = _limit_problem(event, depth, nodes)
        if problem:
            raise yaml.MarkedYAMLError(None, None, problem, event.start_mark)


def _limit_problem(event: yaml.Event, depth: int, nodes: int) -> str:
    """Return why an event exceeds a limit, or ""."""
    if isinstance(event, yaml.AliasEvent):
        return "aliases aren't supported"
    if depth > MAX_YAML_DEPTH:
        return f"lists and mappings are more than {MAX_YAML_DEPTH} levels deep"
    if nodes > MAX_YAML_NODES:
        return f"the file has more than {MAX_YAML_NODES:,} values, keys, lists and mappings"
    return ""
