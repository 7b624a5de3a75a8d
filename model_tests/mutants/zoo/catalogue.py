"""All entries of the zoo, in the order in which they are shown."""

from __future__ import annotations

from typing import Final

from model_tests.mutants.zoo.entry import Entry
from model_tests.mutants.zoo.findings import FINDINGS
from model_tests.mutants.zoo.locks import LOCKS
from model_tests.mutants.zoo.ours import OURS
from model_tests.mutants.zoo.peers import PEERS
from model_tests.mutants.zoo.rocketmq import ROCKETMQ

ENTRIES: Final[tuple[Entry, ...]] = (*FINDINGS, *ROCKETMQ, *PEERS, *LOCKS, *OURS)
