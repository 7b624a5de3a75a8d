"""The client on an asyncio event loop, without threads.

| module | content |
| --- | --- |
| `connection`, `instance` | one connection; all connections and routes of a client |
| `admin` | topics, groups and offsets |
| `producer`, `requests`, `transactions` | sending |
| `member`, `loop_connections` | a member of a group |
| `consumer`, `pull`, `push`, `orderly` | consumers |

Decisions come from the modules that the threads use too: `link`, `produce.attempts`, `consume.puller`, `allocate`.
asyncio's executor looks up host names.
"""
