"""The sections of the site: tutorials, how-to guides, reference and explanation, each with its pages.

A page of `docs` that is not listed here is an error.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen


@frozen
class Section:
    """A part of the site: a page with a list, and the pages below it in their order."""

    name: str
    """Of its page, without the ending."""
    title: str
    words: str
    pages: tuple[str, ...]
    """Without their endings, from the site's top; `README` or `index` of a folder lists the folder's other pages."""


SECTIONS: Final = (
    Section(
        "tutorials",
        "Tutorials",
        "Learn by doing: test a broker, then find its races yourself in lessons of ten minutes.",
        ("embedding", "first-test", "lessons/README", "dojo", "slides", "lecturer", "notebook/README"),
    ),
    Section(
        "guides",
        "How-to guides",
        "One page per task.",
        (
            "try-it",
            "explorer",
            "broker",
            "slave",
            "client",
            "mqadmin",
            "observe",
            "judge",
            "follow",
            "kit",
            "conformance",
            "conformance/README",
            "java",
            "export",
            "oracle",
            "simulation",
            "releasing",
        ),
    ),
    Section(
        "reference",
        "Reference",
        "Commands, Python API, requirements on a broker, the specification, and formats.",
        (
            "command-line",
            "commands/index",
            "api/index",
            "law",
            "book/index",
            "spec",
            "clauses",
            "contract",
            "history",
            "protocol",
            "wire",
            "store",
            "sql92",
            "glossary",
        ),
    ),
    Section(
        "explanation",
        "Explanation",
        "Findings, decisions, costs and limits.",
        (
            "findings",
            "architecture",
            "decisions/README",
            "engines",
            "zoo",
            "mutants",
            "safety",
            "polling",
            "performance",
            "upstream",
        ),
    ),
    Section(
        "chinese",
        "中文",
        "首页、探索器和课程的中文版。 Start page, explorer and lessons in Chinese.",
        ("zh/index", "lessons/zh/README"),
    ),
    Section(
        "project",
        "The project",
        "Changes, contributing and security.",
        (
            "project/readme",
            "project/changelog",
            "project/contributing",
            "project/security",
            "project/locks",
        ),
    ),
)
GENERATED: Final = ("protocol.md", "zoo.md", "mutants.md")
"""Pages that `tree.generated` makes from code and data."""
FROM_OUTSIDE: Final = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "requirements/README.md": "project/locks.md",
}
"""Pages that stand elsewhere in the tree -> their place in the site."""
API: Final = {
    "longpoll": "What `import longpoll` gives: these names are stable.",
    "longpoll_client": "The client.",
    "longpoll_kit.subject": "What one writes of a service of one's own.",
    "longpoll_kit.machine": "What looks for faults in it.",
    "longpoll_recorder.writer": "Writes a history.",
    "longpoll_runtime": "The door to threads, clock, sockets and files.",
    "longpoll_observe": "The recording proxy.",
    "longpoll_spec.errors": "What is raised on purpose.",
    "longpoll_spec.history": "The schema of a history, as code.",
    "longpoll.pytest_plugin": "Fixtures for pytest.",
}
"""Modules whose public names have a page, each with what is said of it in the list."""
