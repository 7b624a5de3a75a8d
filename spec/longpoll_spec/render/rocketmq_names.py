"""Maps participants and actions of the specification to classes and methods of Apache RocketMQ 4.9.8.

`threads` names the thread that takes each step.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from longpoll_spec.model import Action


@frozen
class Participant:
    """A participant in a story, which is one lane of a picture."""

    key: str
    name: str
    java: str
    """The thread, class or field in RocketMQ; empty for a thread of a specification file."""


_FIXED: Final = (
    Participant("producer", "Producer", "SendMessageProcessor"),
    Participant("store", "Store", "CommitLog, ConsumeQueue"),
    Participant("dispatcher", "Dispatcher", "ReputMessageService"),
    Participant("bucket", "Bucket", "ManyPullRequest"),
    Participant("scanner", "Scanner", "PullRequestHoldService"),
    Participant("rechecker", "Pull thread that rechecks", "PullMessageProcessor"),
    Participant("heap", "Deadline heap", "not in RocketMQ"),
    Participant("executor", "Executor", "pullMessageExecutor"),
    Participant("operator", "Operator", "BrokerController"),
)
_ORDER: Final = ("producer", "store", "dispatcher", "scanner", "rechecker", "heap", "operator", "bucket", "executor")

CLIENT: Final = "PullMessageService.pullMessage (client)"
PLACES: Final[dict[str, str]] = {
    "append": "CommitLog.asyncPutMessage",
    "make_visible": "ReputMessageService.doReput -> ConsumeQueue.putMessagePositionInfoWrapper",
    "next_pull": CLIENT,
    "pull_read": "PullMessageProcessor.processRequest -> DefaultMessageStore.getMessage",
    "hold": "PullRequestHoldService.suspendPullRequest -> ManyPullRequest.addPullRequest",
    "notify_start": "PullRequestHoldService.notifyMessageArriving -> ManyPullRequest.cloneListAndClear",
    "notify_each": "PullRequestHoldService.notifyMessageArriving, its loop",
    "notify_end": "PullRequestHoldService.notifyMessageArriving -> ManyPullRequest.addPullRequest(replayList)",
    "scan_start": "PullRequestHoldService.checkHoldRequest -> ManyPullRequest.cloneListAndClear",
    "scan_each": "PullRequestHoldService.checkHoldRequest -> notifyMessageArriving, its loop",
    "scan_end": "PullRequestHoldService.checkHoldRequest -> ManyPullRequest.addPullRequest(replayList)",
    "walk_start": "suspendPullRequest -> notifyMessageArriving: only in upstream pull request #7359",
    "walk_each": "suspendPullRequest -> notifyMessageArriving, its loop: only in upstream pull request #7359",
    "walk_end": "suspendPullRequest -> notifyMessageArriving, its put-back: only in upstream pull request #7359",
    "expire": "not in RocketMQ: only the scan checks deadlines",
    "run": "PullMessageProcessor.executeRequestWhenWakeup -> processRequest(brokerAllowSuspend = false)",
    "tick": "",
    "executor_rejects": "pullMessageExecutor.submit -> ThreadPoolExecutor.AbortPolicy",
    "notifier_throws": "PullRequestHoldService.notifyMessageArriving, its loop without try/finally",
    "scan_throws": "PullRequestHoldService.checkHoldRequest -> DefaultMessageStore.getMaxOffsetInQueue",
    "find_bucket": "PullRequestHoldService.suspendPullRequest -> pullRequestTable.get, putIfAbsent",
    "sweep": "LmqPullRequestHoldService.checkHoldRequest -> ManyPullRequest.getPullRequestList().isEmpty",
    "remove_bucket": "LmqPullRequestHoldService.checkHoldRequest -> pullRequestTable.remove",
    "return_look": "PullRequestHoldService.notifyMasterOnline -> ManyPullRequest.isEmpty (5.x)",
    "return_take": "PullRequestHoldService.notifyMasterOnline -> ManyPullRequest.cloneListAndClear (5.x)",
    "commit_pulled": "PullMessageProcessor.processRequest -> ConsumerOffsetManager.commitOffset",
    "offset_commit": "ConsumerManageProcessor.updateConsumerOffset -> ConsumerOffsetManager.commitOffset",
    "offset_reset": "AdminBrokerProcessor.resetOffset -> ConsumerOffsetManager.commitOffset",
    "channel_closes": "ClientHousekeepingService.onChannelClose: the hold service is not notified",
    "trim": "DefaultMessageStore.CleanConsumeQueueService.deleteExpiredFiles",
    "truncate": "DefaultMessageStore.truncateDirtyLogicFiles",
    "queue_deleted": "AdminBrokerProcessor.deleteTopic -> DefaultMessageStore.cleanUnusedTopic",
    "role_change": "ReplicasManager.changeToMaster (5.x): the hold service is not notified",
    "master_returns": "BrokerController.onMinBrokerChange (5.x, a slave with enableSlaveActingMaster)",
    "flush": "CommitLog.GroupCommitService, FlushRealTimeService",
    "crash_and_recover": "DefaultMessageStore.recover",
    "stop": "BrokerController.shutdown",
}
RECHECK_OF_PULL: Final = "not in RocketMQ; upstream pull request #7359 proposed one after suspendPullRequest"
RECHECK_OF_NOTIFIER: Final = "after addPullRequest(replayList): not in RocketMQ"


def place_of(action: Action) -> str:
    """The place of an action in RocketMQ's source, or the file and line in its specification file."""
    if action.place:
        return action.place
    if action.name == "recheck":
        return RECHECK_OF_PULL if isinstance(action.actors[0], int) else RECHECK_OF_NOTIFIER
    return PLACES[action.name] if not action.thread else ""


def participant_of(key: str) -> Participant:
    """The participant of a key such as `dispatcher`, `pull 0`, `consumer 1` or `bucket q1`."""
    kind, _, slot = key.partition(" ")
    if kind == "bucket" and slot:
        return Participant(key, f"Bucket of {slot}", "ManyPullRequest")
    if kind == "pull":
        return Participant(key, f"Pull thread {slot}", "PullMessageProcessor")
    if kind == "consumer":
        return Participant(key, f"Consumer {slot}", "PullMessageService")
    return next((each for each in _FIXED if each.key == key), Participant(key, key, ""))


def in_order(keys: set[str]) -> tuple[Participant, ...]:
    """The participants with these keys, in the order of a picture: writers, then the table, then readers."""

    def rank(key: str) -> tuple[int, str, int]:
        kind, _, slot = key.partition(" ")
        fixed = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
        return fixed, slot, int(kind == "consumer")

    return tuple(participant_of(key) for key in sorted(keys, key=rank))
