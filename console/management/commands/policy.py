"""manage.py policy: an instance's policy as YAML, for configuration under version control.

manage.py policy export > policy.yaml
manage.py policy export --with-secrets > policy.yaml    with hashes of passwords and tokens; otherwise they
                                                        read "set", and importing that keeps the stored ones
manage.py policy check policy.yaml                      without a database: is the policy valid, is it wise?
manage.py policy diff policy.yaml                       against the newest revision; exit code 1 if different
manage.py policy import policy.yaml --reason "ticket 7" as a new revision
manage.py policy import activemq.xml --from activemq    merged into the newest one; see --help of import;
                                                        standard error lists the outcome for each setting
manage.py policy import activemq.xml --from activemq --set limit=500    with the value of ${limit}
manage.py policy resolve stored     after the database was replaced: store the brokers' policy in it
manage.py policy resolve database   or: brokers apply the database's policy
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError, SluiceError
from broker_core.slow_clients.rules.review import Severity, review_policy
from console.access.policy_secrets import restore_secrets
from console.management.safe_command import SafeCommand
from console.models import Action, Instance
from console.queries import policies as read
from console.queries.document_diff import diff_documents
from console.services import drafts, policies, policy_files, policy_import, set_back
from console.services.actors import SYSTEM
from console.services.policy_import import large_text_error, parse_assignments, refuse_large_text


class Command(SafeCommand):
    """Command for policies as files."""

    help = __doc__

    def create_parser(self, *arguments: Any, **options: Any) -> Any:
        """Return Django's parser, with the help text's own line breaks."""
        return super().create_parser(*arguments, formatter_class=RawDescriptionHelpFormatter, **options)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the sub-commands with their options."""
        commands = parser.add_subparsers(dest="command", required=True)
        export = commands.add_parser("export", help="print a revision as YAML")
        export.add_argument("--revision", type=int, help="default: the newest")
        export.add_argument(
            "--with-secrets", action="store_true", help="include the hashes of users' passwords and tokens"
        )
        check = commands.add_parser(
            "check", help="report errors and warnings; exit code 1 if the policy is invalid"
        )
        diff = commands.add_parser("diff", help="show the changes of an import; exit code 1 if there are any")
        load = commands.add_parser("import", help="publish a file as a new revision")
        load.add_argument("--reason", default="", help="stored with the revision")
        load.add_argument(
            "--draft", action="store_true", help="create a draft, to preview and publish in the console"
        )
        for one in (check, diff, load):
            one.add_argument("file", help="the file; - means standard input")
        for one in (diff, load):
            one.add_argument(
                "--from",
                dest="system",
                choices=sorted(policy_import.READERS),
                help="the system whose configuration it is",
            )
            one.add_argument(
                "--set",
                dest="values",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="value of a variable of the file, such as ${NAME}; may be repeated",
            )
        resolve = commands.add_parser(
            "resolve", help="choose between the brokers' policy and the database's (policy_set_back)"
        )
        resolve.add_argument(
            "choice",
            choices=list(set_back.SetBackChoice),
            type=set_back.SetBackChoice,
            metavar="{stored,database}",
        )
        resolve.add_argument("--reason", default="", help="stored with the revision")
        for one in (export, diff, load, resolve):
            one.add_argument("--instance", help="default: the instance of this installation")

    def handle(self, *arguments: Any, **options: Any) -> None:
        """Run a sub-command. Sluice's errors become one line with a fix."""
        try:
            getattr(self, f"_{options['command']}")(options)
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".strip()) from None

    def _export(self, options: dict[str, Any]) -> None:
        instance = read.instance_named(options["instance"])
        revision = (
            read.revision_numbered(instance, options["revision"])
            if options["revision"]
            else policies.newest_revision(instance)
        )
        self.stdout.write_block(policy_files.dump_yaml(revision, with_secrets=options["with_secrets"]))

    def _check(self, options: dict[str, Any]) -> None:
        document = PolicyDocument.from_dict(
            {**policy_files.read_own_yaml(_text(options["file"])), "revision": 1}
        )
        findings = review_policy(document)
        for one in findings:
            self.stdout.write(f"{one.severity}: {one.where}: {one.sentence} {one.fix}".strip())
        if any(one.severity is Severity.REFUSE for one in findings):
            sys.exit(1)
        self.stdout.write(
            "The policy is valid." if not findings else f"The policy is valid; {len(findings)} findings."
        )

    def _diff(self, options: dict[str, Any]) -> None:
        instance = read.instance_named(options["instance"])
        newest = policies.newest_revision(instance).document
        differences = diff_documents(
            newest, restore_secrets(self._loaded(options, instance).document, newest)
        )
        for one in differences:
            self.stdout.write(f"{one.path}: {one.before} → {one.after}")
        if differences:
            sys.exit(1)

    def _import(self, options: dict[str, Any]) -> None:
        instance = read.instance_named(options["instance"])
        loaded = self._loaded(options, instance, list_settings=False)
        reason = options["reason"] or f"Imported from {Path(options['file']).name}"
        try:
            if options["draft"]:
                made = self._make_draft(instance, loaded, _system(options), reason)
            else:
                self._publish(instance, loaded, reason)
                made = policy_files.make_actions(SYSTEM, instance, _system(options), loaded.imported)
        finally:
            self._report_settings(loaded)
        for action in made:
            self.stdout.write(
                f"Action {action.name!r} was created in the disabled state: check and enable it."
            )

    def _make_draft(
        self, instance: Instance, loaded: policy_files.ParsedPolicyFile, system: str, title: str
    ) -> list[Action]:
        with transaction.atomic():
            made = policy_files.make_actions(SYSTEM, instance, system, loaded.imported)
            draft = drafts.create_draft(SYSTEM, title, document=loaded.document, instance_name=instance.name)
        self.stdout.write(f"Draft {draft.pk} was created: preview and publish it on the page Policies.")
        return made

    def _publish(self, instance: Instance, loaded: policy_files.ParsedPolicyFile, reason: str) -> None:
        """Publish a file as a new revision. A file that only has actions makes none."""
        if loaded.imported.actions and not loaded.imported.document:
            return
        before = policies.newest_revision(instance).number
        try:
            change = policies.publish(SYSTEM, loaded.document, reason=reason, instance_name=instance.name)
        except OperatorError as problem:
            if problem.code == "bad_policy":
                problem.fix = "Correct the file, or create a draft (--draft) and correct it."
            raise
        number = change.revision.number
        outcome = (
            f"The file equals revision {number}. No revision was created."
            if number == before
            else f"Revision {number}."
        )
        self.stdout.write(f"{outcome} {change.problem or 'It is in force.'}")
        for one in change.findings:
            self.stderr.write(f"{one.severity}: {one.where}: {one.sentence} {one.fix}".strip())

    def _resolve(self, options: dict[str, Any]) -> None:
        instance = read.instance_named(options["instance"])
        change = set_back.resolve_set_back(
            SYSTEM, options["choice"], reason=options["reason"], instance_name=instance.name
        )
        self.stdout.write(f"Revision {change.revision.number}. {change.problem or 'It is in force.'}")

    def _loaded(
        self, options: dict[str, Any], instance: Instance, *, list_settings: bool = True
    ) -> policy_files.ParsedPolicyFile:
        """Read a file. If `list_settings`, list the outcome for each setting on standard error."""
        try:
            loaded = policy_files.parse_file(
                instance, _system(options), _text(options["file"]), parse_assignments(options["values"])
            )
        except OperatorError as problem:
            for one in problem.details.get("left_out", ()):
                self._report_setting("left out", one["line"], one["where"], one["what"], one["why"])
            raise
        if list_settings:
            self._report_settings(loaded)
        return loaded

    def _report_settings(self, loaded: policy_files.ParsedPolicyFile) -> None:
        imported = loaded.imported
        for sentence in loaded.warnings:
            self.stderr.write(f"warning: {sentence}")
        for accepted in imported.imported:
            self._report_setting("taken", accepted.line, accepted.where, accepted.what, accepted.into)
        for skipped in imported.skipped:
            self._report_setting("left out", skipped.line, skipped.where, skipped.what, skipped.why)
        for unrelated in imported.unrelated:
            self._report_setting("unrelated to the policy", unrelated.line, unrelated.where, unrelated.what)

    def _report_setting(self, word: str, line: int, where: str, *texts: str) -> None:
        position = where if where.startswith("line ") else f"line {line} {where}"
        self.stderr.write(": ".join((word, position, *texts)))


def _system(options: dict[str, Any]) -> str:
    return options["system"] or policy_files.YAML


def _text(name: str) -> str:
    """Return the text of a file, or of standard input for "-". Raises OperatorError `bad_import`."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(policy_files.MAX_READ_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(policy_files.MAX_READ_BYTES + 1)
    except OSError as problem:
        raise OperatorError("bad_import", f"{name} can't be read: {problem}.", "Give a text file.") from None
    if len(data) > policy_files.MAX_READ_BYTES:
        raise large_text_error(policy_files.MAX_BYTES, name)
    text = policy_files.decode_file(data)
    refuse_large_text(text, policy_files.MAX_BYTES, name)
    return text
