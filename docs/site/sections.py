"""Where each page has its place: tutorials to learn by, guides for a task, reference to look things up, explanation.

A page of `docs` that has no place here is an error. Leaves out the text of the pages.
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
        "Learn by doing: each lesson is ten minutes of commands, and every command of a lesson is run by a test.",
        ("lessons/README", "slides", "lecturer", "notebook/README", "dojo"),
    ),
    Section(
        "guides",
        "How-to guides",
        "How to do one thing.",
        (
            "try-it",
            "explorer",
            "broker",
            "slave",
            "embedding",
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
        "To look things up: commands, the public names in Python, what a broker is held to, the law, and formats.",
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
        "Why it is so: what was found, what was decided, what it costs, and how far it goes.",
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
        "What stands beside the code.",
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
