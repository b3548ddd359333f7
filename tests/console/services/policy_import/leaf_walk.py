"""Leaves of a configuration file, found without the importers: XML with the standard library, scripts with
shlex.
"""

from __future__ import annotations

import shlex
from collections import Counter
from xml.etree import ElementTree

from console.services.policy_import import ImportReport


def of_xml(text: str) -> Counter[str]:
    """Count the paths of all attributes and of all elements that have text or are empty."""
    found: Counter[str] = Counter()
    _walk(ElementTree.fromstring(text), "", found)
    return found


def _walk(element: ElementTree.Element, path: str, found: Counter[str]) -> None:
    path = path or f"/{_local(element.tag)}"
    words = [element.text or "", *(child.tail or "" for child in element)]
    if "".join(words).strip() or (len(element) == 0 and not element.attrib):
        found[path] += 1
    names = Counter(map(_local, element.attrib))
    for key in element.attrib:
        found[f"{path}/@{_local(key) if names[_local(key)] == 1 else key}"] += 1
    siblings = [_local(child.tag) for child in element]
    for place, child in enumerate(element):
        name = siblings[place]
        number = f"[{siblings[: place + 1].count(name)}]" if siblings.count(name) > 1 else ""
        _walk(child, f"{path}/{name}{number}", found)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def of_script(text: str) -> Counter[str]:
    """Count the options in a shell script's assignments and commands. Assignments without options count
    whole.
    """
    found: Counter[str] = Counter()
    for line in _commands(text):
        words = shlex.split(line, comments=True)
        name, equals, _ = words[-1].partition("=") if words else ("", "", "")
        if words and words[0] in ("export", "set") and equals:
            value = words[-1].removeprefix(f"{name}=")
            found.update(value.split() if "-" in [word[0] for word in value.split()] else [f"{name}={value}"])
        elif any(word.startswith("-D") for word in words):
            found.update(words)
        elif words:
            found[line] += 1
    return found


def _commands(text: str) -> list[str]:
    """Return the script's lines, joined at backslashes and inside quotes."""
    made: list[str] = []
    held = ""
    for line in text.replace("\\\n", " ").splitlines():
        held = f"{held} {line.strip()}".strip()
        try:
            shlex.split(held, comments=True)
        except ValueError:
            continue
        made, held = [*made, held], ""
    return made


def accounted(imported: ImportReport) -> Counter[str]:
    """Count the locations of all leaves in an import report."""
    lists = (imported.imported, imported.skipped, imported.unrelated)
    return Counter(one.where for told in lists for one in told)


def options_accounted(imported: ImportReport) -> Counter[str]:
    """Count the options and lines in an import report."""
    lists = (imported.imported, imported.skipped, imported.unrelated)
    return Counter(one.what for told in lists for one in told)
