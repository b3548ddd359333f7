"""Lines of a start script whose effect depends on more than the line itself.

The importer of XAP reads a script without executing it. So it imports settings of such lines in shadow mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_OPENERS: Final = (
    (re.compile(r".*(?:^|[\s;&|])\($|.*\)\s*\($|.*=\($"), ")"),
    (re.compile(r".*\{$"), "}"),
    (re.compile(r"if\b(?!\s*[=:.])", re.IGNORECASE), "fi"),
    (re.compile(r"case\b(?!\s*[=:.])", re.IGNORECASE), "esac"),
    (re.compile(r"(?:for|while|until|select)\b(?!\s*[=:.])", re.IGNORECASE), "done"),
)
"""Beginning of a block, and the word that ends it. The first that matches counts."""
_END: Final = re.compile(r"(?:^|;\s*)(fi|esac|done)\b\s*;?$|^([)}])", re.IGNORECASE)
_SKIPS_THE_REST: Final = re.compile(r"(?:^|[\s;&|(])(?:return|goto|exit\s+/b)\b|<<", re.IGNORECASE)
"""Commands after which the remaining lines may never be executed, and documents that are only input."""
_SETS_NOTHING: Final = re.compile(r"@?(?:echo|printf|print|cat|logger|:)(?:\s|$)", re.IGNORECASE)
_CONTINUES: Final = ("&&", "||", "|")
_OPERATOR: Final = re.compile(r"&&|\|\||;\s*\S")
_QUOTED: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'", re.DOTALL)
_VARIABLE: Final = re.compile(
    r"(?:(?:export|set|declare\s+-x|typeset\s+-x|setenv|unset|ENV|ARG)\s+|Environment=)?[\"']?"
    r"(?P<name>[A-Za-z_]\w*)(?:\+?=|\s|$)",
    re.IGNORECASE,
)
_WITHOUT_SPACES: Final = re.compile(
    r"(?:\b|_)(?:LUS|GSM|GSA|ESM|UI|WEBUI|WEB_UI|CLI|MANAGER)_(?:JAVA_)?OPTIONS[\"']?\s*(?:[+:]?=|:|\s|$)",
    re.IGNORECASE,
)
_EXPORT: Final = re.compile(r"(?:;\s*|^)(?:export|(?:declare|typeset)\s+-x)(?:\s+[A-Za-z_]\w*)+\s*;?\s*$")
"""Export of variables without a value: it assigns nothing."""
_IF_UNSET: Final = re.compile(r"\$\{\w+:?[-=+?][^}]*-[DX]")
"""Options that a shell uses depending on whether a variable is set."""
_MAY_NOT_RUN: Final = re.compile(r"(?:ARG|RUN|ONBUILD|HEALTHCHECK|LABEL)\s", re.IGNORECASE)
"""Instructions of a Dockerfile that set nothing in the container, or that a build may replace."""
_PROFILES: Final = re.compile(r"^\s+profiles\s*:", re.MULTILINE)
"""Services of a compose file that start only if somebody asks for them."""
"""Variables with the options of XAP's processes that contain no space, and so have no slow consumers."""


def conditional_lines(text: str, logical_lines: Iterable[tuple[int, str]]) -> set[int]:
    """Return the numbers of lines that may not be executed, or that set nothing for a space.

    Args:
        text: The script.
        logical_lines: Number and text of each line without comments, joined with the lines that continue it.
    """
    lines = list(logical_lines)
    if _PROFILES.search(text):
        return {number for number, _ in lines}
    return set(_lines_in_blocks(text)) | set(_lines_by_form(lines)) | set(_overwritten_lines(lines))


def without_comment(line: str) -> str:
    """Return a line of a script without the comment at its end. A # inside quotes or a word is no comment."""
    masked = _QUOTED.sub(lambda found: "x" * len(found[0]), line)
    comment = re.search(r"\s#", masked)
    return line[: comment.start()].rstrip() if comment else line


def _lines_in_blocks(text: str) -> Iterator[int]:
    """Yield the lines inside, or on, a block, and the lines after one that may skip the rest."""
    open_blocks: list[str] = []
    skipped = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = without_comment(raw.strip())
        end = next((end for begins, end in _OPENERS if begins.match(line)), None)
        if skipped or open_blocks or end:
            yield number
        if end:
            open_blocks.append(end)
        if (found := _END.search(line)) and open_blocks and open_blocks[-1] == (found[1] or found[2]).lower():
            open_blocks.pop()
        skipped = skipped or _SKIPS_THE_REST.search(line) is not None


def _lines_by_form(lines: Iterable[tuple[int, str]]) -> Iterator[int]:
    """Yield lines with several commands, lines that continue a condition, and lines that only print."""
    before = ""
    for number, line in lines:
        if (
            before.endswith(_CONTINUES)
            or _SETS_NOTHING.match(line)
            or _OPERATOR.search(_EXPORT.sub("", _QUOTED.sub("", line)))
            or _IF_UNSET.search(line)
            or _MAY_NOT_RUN.match(line)
            or _WITHOUT_SPACES.search(line.partition("-D")[0])
        ):
            yield number
        before = line.rstrip()


def _overwritten_lines(lines: Iterable[tuple[int, str]]) -> Iterator[int]:
    """Yield lines that assign a variable that a later line assigns without its previous value, or unsets."""
    assigned: dict[str, list[int]] = {}
    for number, line in lines:
        if (found := _VARIABLE.match(line)) is None or _EXPORT.match(line):
            continue
        name = found["name"]
        if not re.search(rf"[$%]\{{?{name}\b|\b{name}\+=", line):
            yield from assigned.pop(name, [])
        assigned.setdefault(name, []).append(number)
