"""manage.py policy: an instance's policy as YAML, for those who keep configuration in version control.

    manage.py policy export > policy.yaml
    manage.py policy check policy.yaml                      without a database: is it a policy, and is it wise?
    manage.py policy diff policy.yaml                       against the newest revision; exit code 1 when they differ
    manage.py policy import policy.yaml --reason "ticket 7" as a new revision
    manage.py policy import activemq.xml --from activemq    also qpid, amps and xap: laid over the newest revision
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError

from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError, SluiceError
from broker_core.slow_clients.review import Severity, review
from console.queries import policies as read
from console.queries.document_diff import changes
from console.services import drafts, policies, policy_import
from console.services.actions import editing
from console.services.actors import SYSTEM

MOST_BYTES = 4 * 1024 * 1024


class Command(BaseCommand):
    """Policies as files."""

    help = __doc__

    def create_parser(self, *arguments: Any, **options: Any) -> Any:
        """Django's, with the text above as it is written."""
        return super().create_parser(*arguments, formatter_class=RawDescriptionHelpFormatter, **options)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One subcommand each."""
        commands = parser.add_subparsers(dest="command", required=True)
        export = commands.add_parser("export", help="print the newest revision, or another, as YAML")
        export.add_argument("--revision", type=int, help="default the newest")
        check = commands.add_parser("check", help="say what is wrong or unwise; exit code 1 when it can't be used")
        diff = commands.add_parser("diff", help="what importing would change; exit code 1 when anything would")
        load = commands.add_parser("import", help="make a file the policy, as a new revision")
        load.add_argument("--reason", default="", help="kept with the revision")
        load.add_argument("--draft", action="store_true", help="make a draft, to be previewed and published in the console")
        for one in (check, diff, load):
            one.add_argument("file", help="the file; - reads standard input")
        for one in (diff, load):
            one.add_argument("--from", dest="system", choices=sorted(policy_import.READERS), help="whose configuration it is")
        for one in (export, diff, load):
            one.add_argument("--instance", help="default this installation's own")

    def handle(self, *arguments: Any, **options: Any) -> None:
        """Run one, with errors as sentences."""
        try:
            getattr(self, f"_{options['command']}")(options)
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".strip()) from None

    def _export(self, options: dict[str, Any]) -> None:
        instance = read.instance_named(options["instance"])
        revision = (
            read.revision_numbered(instance, options["revision"]) if options["revision"] else policies.newest_of(instance)
        )
        document = {key: value for key, value in revision.document.items() if key != "revision"}
        self.stdout.write(f"# {instance.name}, revision {revision.number}, by {revision.author}\n", ending="")
        self.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), ending="")

    def _check(self, options: dict[str, Any]) -> None:
        document = PolicyDocument.from_dict({**_yaml(_text(options["file"])), "revision": 1})
        findings = review(document)
        for one in findings:
            self.stdout.write(f"{one.severity}: {one.where}: {one.sentence} {one.fix}".strip())
        if any(one.severity is Severity.REFUSE for one in findings):
            sys.exit(1)
        self.stdout.write("The policy can be used." if not findings else f"The policy can be used; {len(findings)} findings.")

    def _diff(self, options: dict[str, Any]) -> None:
        instance = read.instance_named(options["instance"])
        document, _ = self._document(options, instance.name)
        differences = changes(policies.newest_of(instance).document, document)
        for one in differences:
            self.stdout.write(f"{one.path}: {one.before} → {one.after}")
        if differences:
            sys.exit(1)

    def _import(self, options: dict[str, Any]) -> None:
        instance = read.instance_named(options["instance"])
        document, actions = self._document(options, instance.name)
        reason = options["reason"] or f"Imported from {Path(options['file']).name}"
        if options["draft"]:
            draft = drafts.make(SYSTEM, reason, document=document, instance_name=instance.name)
            self.stdout.write(f"Draft {draft.pk} is made: preview and publish it on the page Policies.")
        else:
            change = policies.publish(SYSTEM, document, reason=reason, instance_name=instance.name)
            self.stdout.write(f"Revision {change.revision.number}. " + (change.problem or "It is in force."))
            for one in change.findings:
                self.stderr.write(f"{one.severity}: {one.where}: {one.sentence} {one.fix}".strip())
        for action in actions:
            made = editing.create(SYSTEM, instance, {**action, "enabled": False})
            self.stdout.write(f"Action {made.name!r} is made and switched off: look at it and enable it.")

    def _document(self, options: dict[str, Any], instance_name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The whole document that a file makes, and the actions in it. What is left out is listed on standard error."""
        newest = policies.newest_of(read.instance_named(instance_name)).document
        text = _text(options["file"])
        if not options["system"]:
            return {**_yaml(text), "revision": newest["revision"]}, []
        imported = policy_import.read(options["system"], text)
        for one in imported.left_out:
            self.stderr.write(f"left out: {one.where}: {one.what}: {one.why}")
        given = dict(imported.document)
        if "transports" in given:
            given["transports"] = {transport["name"]: transport for transport in given["transports"]}
        return drafts.overlay(newest, given), imported.actions


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read(MOST_BYTES + 1) if name == "-" else Path(name).read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as problem:
        raise OperatorError("bad_import", f"{name} can't be read: {problem}.", "Give a text file.") from None
    if len(data) > MOST_BYTES:
        raise OperatorError("bad_import", f"{name} is over {MOST_BYTES} bytes.", "Give the part with the policy.")
    return text


def _yaml(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise OperatorError("bad_import", f"The file isn't YAML: {problem}.", "Start from `policy export`.") from None
    if not isinstance(document, dict):
        raise OperatorError("bad_import", "The file holds no policy.", "Start from `policy export`.")
    return document
