"""The client on an asyncio event loop, without threads.

| module | content |
| --- | --- |
| `connection`, `instance` | one connection; all connections, routes, tasks and timers of a client |
| `producer` | sending, and transactions |
| `consumer` | a member of a group, and consumers |

Decisions come from the modules that the threads use too: `link`, `produce`, `consume`, `allocate`.
asyncio's executor looks up host names.
"""
