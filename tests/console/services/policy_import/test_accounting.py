"""Every leaf of an imported file is reported exactly once, and a file is refused only if nothing can be
imported.
"""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from broker_core.errors import OperatorError
from console.services import policy_import
from console.services.policy_import import ImportReport
from tests.console.services.policy_import import leaf_walk
from tests.console.services.policy_import.test_whole_files import XML, text_of

TREES = {system: (name, text_of(name)) for system, name in XML}
KNOWN = sorted(
    {
        element.tag.rpartition("}")[2]
        for _, text in TREES.values()
        for element in ElementTree.fromstring(text).iter()
    }
    | {"topic", "consumer", "option", "policy", "value"}
)
KEYS = sorted(
    {
        key
        for _, text in TREES.values()
        for element in ElementTree.fromstring(text).iter()
        for key in element.attrib
    }
)
WORDS = st.sampled_from(
    [
        "",
        "0",
        "5",
        "50%",
        "true",
        "false",
        "a.b",
        "a.>",
        "#",
        ">",
        "A,B",
        "TopicDelete",
        "tcps",
        "/x",
        "10MB",
        "7d",
        "${x}",
        "tcp",
        "9999",
        "amps-action-on-startup",
        "amps-action-do-rotate-logs",
        f"{policy_import.xap.PREFIX}retries",
        "1" * 30,
        "  ",
        "ünïcode",
        "(",
        "password=x",
    ]
)
UNKNOWN = st.sampled_from(["wibble", "wobble", "{urn:elsewhere}wibble"])


def subtrees(
    names: st.SearchStrategy[str], keys: st.SearchStrategy[str]
) -> st.SearchStrategy[ElementTree.Element]:
    """Return a strategy for small XML trees with attributes, text and tails."""

    def made(
        name: str, attributes: dict[str, str], text: str, children: list[ElementTree.Element], tail: str
    ) -> ElementTree.Element:
        element = ElementTree.Element(name, attributes)
        element.text, element.tail = text, tail
        element.extend(children)
        return element

    def over(inner: st.SearchStrategy[ElementTree.Element]) -> st.SearchStrategy[ElementTree.Element]:
        return st.builds(
            made, names, st.dictionaries(keys, WORDS, max_size=3), WORDS, st.lists(inner, max_size=3), WORDS
        )

    leaf = st.builds(made, names, st.dictionaries(keys, WORDS, max_size=3), WORDS, st.just([]), WORDS)
    return st.recursive(leaf, over, max_leaves=6)


def mixed_in(
    system: str, place: int, before: int, added: ElementTree.Element
) -> tuple[str, ElementTree.Element]:
    """Return a known file with `added` inserted into one of its elements, and that element."""
    root = ElementTree.fromstring(TREES[system][1])
    elements = list(root.iter())
    into = elements[place % len(elements)]
    into.insert(before % (len(into) + 1), added)
    return ElementTree.tostring(root, encoding="unicode"), into


def read(system: str, text: str) -> ImportReport | None:
    """Import the file; return None if it is refused because nothing can be imported."""
    try:
        return policy_import.import_policy(system, text)
    except OperatorError as problem:
        assert problem.code == "nothing_imported"
        return None


SYSTEMS = st.sampled_from(sorted(TREES))
PLACES = st.integers(0, 500)


@given(SYSTEMS, PLACES, PLACES, subtrees(st.sampled_from(KNOWN) | UNKNOWN, st.sampled_from(KEYS) | UNKNOWN))
def test_each_leaf_is_told_of_once_whatever_is_mixed_in(
    system: str, place: int, before: int, added: ElementTree.Element
) -> None:
    text, _ = mixed_in(system, place, before, added)
    imported = read(system, text)
    assert imported is not None
    assert leaf_walk.accounted(imported) == leaf_walk.of_xml(text)
    assert imported.imported


@given(SYSTEMS, subtrees(st.sampled_from(KNOWN) | UNKNOWN, st.sampled_from(KEYS) | UNKNOWN))
def test_each_leaf_of_any_tree_is_told_of_once_or_it_is_refused(
    system: str, tree: ElementTree.Element
) -> None:
    tree.tail = None
    text = ElementTree.tostring(tree, encoding="unicode")
    imported = read(system, text)
    if imported is not None:
        assert leaf_walk.accounted(imported) == leaf_walk.of_xml(text)
        assert imported.imported


@given(SYSTEMS, PLACES, PLACES, subtrees(UNKNOWN, UNKNOWN))
def test_what_is_unknown_changes_nothing(
    system: str, place: int, before: int, added: ElementTree.Element
) -> None:
    added.tail = None
    text, into = mixed_in(system, place, before, added)
    known, imported = (
        policy_import.import_policy(system, TREES[system][1]),
        policy_import.import_policy(system, text),
    )
    assert imported.document == known.document
    if into.tag not in ("Action", "Actions"):  # the importer skips an action that has an unsupported part
        assert imported.actions == known.actions
    assert not [one for one in imported.imported if "wibble" in one.where or "wobble" in one.where]


OPTIONS = st.lists(
    st.sampled_from(
        [
            "-Xmx1g",
            "-Dx=1",
            "-Dx",
            f"-D{policy_import.xap.PREFIX}latency=9",
            f"-D{policy_import.xap.PREFIX}nap=9",
            "$OTHER",
            "-Dcom.gs.fifo_notify.queue=1",
            f"-D{policy_import.xap.PREFIX}latency=soon",
        ]
    ),
    min_size=1,
    max_size=5,
)
LINES = st.builds(
    lambda start, quote, join, options: f"{start}{quote}-Xms1g {join.join(options)}{quote}",
    st.sampled_from(["export A=", "export XAP_GSC_OPTIONS="]),
    st.sampled_from(['"', "'"]),
    st.sampled_from([" ", "  "]),
    OPTIONS,
)


@given(
    st.lists(LINES | st.sampled_from(["export B=/x", "# a comment", "", "fi", ". setenv.sh"]), max_size=6),
    st.booleans(),
)
def test_each_option_of_a_script_is_told_of_once(lines: list[str], apart: bool) -> None:
    text = "\n".join([*lines, f"export Z='-D{policy_import.xap.PREFIX}enabled=true'"])
    if apart:
        text = text.replace("-Xms1g ", "-Xms1g \\\n  ")
    imported = policy_import.import_policy("xap", text)
    assert leaf_walk.options_accounted(imported) == leaf_walk.of_script(text)
