"""The sections of the site: tutorials, how-to guides, reference and explanation, each with its pages.

A page of `docs` that is not listed here is an error.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen


@frozen
class Section:
    """A section of the website: a page with a list, and the pages below it in order."""

    name: str
    """The file name of the section's page, without `.md`."""
    title: str
    words: str
    pages: tuple[str, ...]
    """The paths of the pages without their endings, relative to the website. `README` or `index` of a folder lists the
    folder's other pages."""


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
            "own-specification",
            "broker",
            "slave",
            "client",
            "mqadmin",
            "observe",
            "judge",
            "follow",
            "kit",
            "services",
            "conformance",
            "conformance/README",
            "java",
            "export",
            "oracle",
            "simulation",
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
            "model",
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
            "pop",
            "architecture",
            "way-of-a-message",
            "decisions/README",
            "engines",
            "zoo",
            "safety",
            "polling",
            "performance",
            "upstream",
        ),
    ),
    Section(
        "chinese",
        "中文 (Chinese)",
        "首页、探索器和课程的中文版。 Start page, explorer and lessons in Chinese.",
        ("zh/index", "lessons/zh/README"),
    ),
    Section(
        "project",
        "The project",
        "Changes, contributing, releases and security.",
        (
            "project/readme",
            "project/changelog",
            "project/contributing",
            "releasing",
            "project/security",
            "project/locks",
        ),
    ),
)
GENERATED: Final = ("protocol.md", "zoo.md")
"""Pages that `tree.generated` makes from code and data."""
FROM_OUTSIDE: Final = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "requirements/README.md": "project/locks.md",
}
"""Maps pages outside of `docs` to their paths in the website."""
API: Final = {
    "longpoll": "The stable names of `import longpoll`.",
    "longpoll_client": "The clients.",
    "longpoll_kit.subject": "The class that you write to test your own service.",
    "longpoll_kit.machine": "The state machine that tests it.",
    "longpoll_recorder.writer": "Writes a history.",
    "longpoll_runtime": "Threads, clock, sockets and files, real or simulated.",
    "longpoll_observe": "The recording proxy.",
    "longpoll_spec.custom": "What a specification file imports.",
    "longpoll_spec.errors": "The exceptions.",
    "longpoll_spec.history": "The schema of a history, as code.",
    "longpoll.pytest_plugin": "Fixtures for pytest.",
}
"""Maps each module with a page of its public names to a description."""
SUBJECTS: Final = {
    "longpoll": {
        "Run a broker": ("Broker", "NameServer", "observe"),
        "Send and consume": (
            "Producer",
            "TransactionProducer",
            "TransactionState",
            "PushConsumer",
            "PullConsumer",
            "ConsumerConfig",
            "ReceivedMessage",
            "Reject",
            "Retry",
            "Admin",
            "RealRuntime",
        ),
        "Judge a run": ("judge", "HistoryWriter"),
        "Check the specification": ("check", "prove", "explain", "Policy"),
        "Test your own service": ("LongPollSubject", "LongPollMachine", "Polled"),
        "Errors": ("LongpollError", "UserError"),
    },
}
"""Maps a module to its subjects, and each subject to public names, in the order of the page."""
