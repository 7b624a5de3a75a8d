"""The client on an asyncio event loop, without threads.

| module | content |
| --- | --- |
| `connection`, `instance` | one connection; all connections, routes, tasks and timers of a client |
| `producer`, `transactions` | sending |
| `consumer`, `push` | a member of a group, and consumers |

Decisions come from the modules that the threads use too: `link`, `produce.attempts`, `consume`, `allocate`.
asyncio's executor looks up host names.
"""
