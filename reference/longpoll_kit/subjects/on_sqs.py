"""SQS standard queues, read with boto3, or a compatible service such as moto and ElasticMQ.

Promised by the SQS developer guide (standard queues; visibility timeout; short and long polling): messages arrive in
any order and at least once; a message that is not deleted within its visibility timeout is delivered again; waits are 1
to 20 whole seconds, because a wait of 0 (short polling) may miss messages.

Boto3 finds credentials and region as usual. Without credentials, the subject invents some, which suffice for a
compatible service.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from longpoll_kit.subject import LongPollSubject, Polled
from longpoll_kit.subjects.addresses import MadeOnce, closed_on_error, local_process

VISIBILITY_S: Final = 1
CONNECTIONS_MAX: Final = 5_000
"""The maximum number of connections to the service, because each waiting poll has its own connection and thread."""


class SqsSubject(LongPollSubject):
    """The queues of a service; `close` deletes them."""

    semantics = "consuming"
    order = "none"
    redelivery_ms = 0
    wait_unit_ms = 1_000
    wait_min_ms = 1
    wait_max_ms = 20_000
    gone = (BotoCoreError, ClientError)

    def __init__(self, url: str, _mode: str) -> None:
        """Connect. Raises one of the exceptions in `gone` if the service does not answer."""
        endpoint = url.removeprefix("sqs+")
        split = urlsplit(endpoint)
        self.process_id = local_process(split.hostname, split.port)
        session = boto3.Session()
        known = {"region_name": session.region_name or "us-east-1"}
        if session.get_credentials() is None:
            known |= {"aws_access_key_id": "kit", "aws_secret_access_key": "kit"}
        config = Config(max_pool_connections=CONNECTIONS_MAX, retries={"total_max_attempts": 1})
        self._sqs: Any = session.client("sqs", endpoint_url=endpoint, config=config, **known)
        self._sqs.meta.events.register("before-send.sqs.ReceiveMessage", self._leaves)
        self._pool = ThreadPoolExecutor(CONNECTIONS_MAX)
        self._this_thread = threading.local()
        self._url = MadeOnce(self._create)
        # If the constructor fails, close the subject here, because the kit closes only subjects that were created
        # successfully.
        with closed_on_error(self):
            self._sqs.list_queues(MaxResults=1)

    def _leaves(self, **_request: object) -> None:
        """Report that this thread is about to send a signed request; boto3 calls this hook."""
        self._this_thread.leaves.set()

    def publish(self, queue: str, body: bytes) -> None:
        """Send a message, whose body must be UTF-8 text."""
        self._sqs.send_message(QueueUrl=self._url(queue), MessageBody=body.decode())

    def start_poll(self, queue: str, position: None, timeout_ms: int) -> Future[Any]:  # noqa: ARG002 - a queue has none
        """Send a receive request on a new thread; return when the thread is about to send it."""
        leaves = threading.Event()
        receive = partial(
            self._sqs.receive_message,
            QueueUrl=self._url(queue),
            WaitTimeSeconds=timeout_ms // 1_000,
            MaxNumberOfMessages=10,
        )
        poll = self._pool.submit(self._receive, leaves, queue, receive)
        leaves.wait()
        return poll

    def _receive(self, leaves: threading.Event, queue: str, receive: Any) -> tuple[str, Any]:
        self._this_thread.leaves = leaves
        try:
            return queue, receive().get("Messages", [])
        finally:
            leaves.set()

    def finish_poll(self, handle: Future[Any]) -> Polled:
        """Wait for the answer."""
        _queue, messages = handle.result()
        return Polled([message["Body"].encode() for message in messages])

    def acknowledge(self, handle: Future[Any]) -> None:
        """Delete the messages."""
        queue, messages = handle.result()
        entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)]
        self._sqs.delete_message_batch(QueueUrl=self._url(queue), Entries=entries)

    def close(self) -> None:
        """Delete the queues, and end the threads."""
        try:
            for url in self._url.made.values():
                self._sqs.delete_queue(QueueUrl=url)
        finally:
            self._pool.shutdown()
            self._sqs.close()

    def _create(self, queue: str) -> Any:
        made = self._sqs.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": str(VISIBILITY_S)})
        return made["QueueUrl"]
