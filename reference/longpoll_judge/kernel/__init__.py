"""The kernel: judges a window, all events of some queues, at once. No loop goes over queues, groups or connections.

`verdict.judge_window(table, context)` returns rows that can be added up (`rows`): counts, latencies and findings.

**The window** (`window`). Texts are dictionary codes, and a queue is a number. The rows are in one canonical order: by
queue, then by time. To join requests and answers, row numbers are scattered into an array by request number, in one
step for each kind of event. A window holds whole queues, so it needs no data from other windows. If a request has
events in two windows, its events are copied to both, where the copies are called visitors (`run.buckets`).

**Lives and logs** (`lives`, `logs`). Each generation of a queue is a separate log with a number. The messages of all
logs are one array, ascending by log and offset, and the logs lie side by side in one dense range of numbers
(`lookup.Grouped`): a message's number is its log's base plus its offset. Running extremes, which restart with each log,
show when an offset was visible, possibly and certainly, and which end was reached by a time. For each subscription, a
mask over the messages gives the number of matching messages in a range, and the next matching message.

**The context** (`evidence.survey.Context`) has the facts about the whole history that the rules need: thresholds,
observers, gaps of the record, clocks, closes and blocks of connections, generations of queues, restarts of brokers.

**Rules.** `case` joins pulls and answers; `answers`, `promptness`, `holding`, `connections` and `order` judge them and
the logs. `gathered` holds other events as columns of hashes; `sends`, `messages`, `ends`, `filters` and `commits` judge
these events. `hold_limit` counts held pulls, source by source.

**Evidence.** A rule marks suspects by arrays. It writes the reason and selects the evidence only for listed suspects.
"""
