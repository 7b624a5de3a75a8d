"""The client on an asyncio event loop, without threads.

| module | content |
| --- | --- |
| `connection`, `instance` | one connection; all connections, routes, tasks and timers of a client |
| `producer` | sending, and transactions |
| `consumer` | a member of a group, and consumers |

The modules `link`, `produce`, `consume` and `allocate` decide what to do, for threads and event loops alike. asyncio's
executor looks up host names.
"""
