"""Who serves which code: each is some one service's, and that service says so itself."""

from __future__ import annotations

from typing import Any

import pytest

from longpoll_broker.handler import CodeServedTwiceError, together
from longpoll_broker.service.io.processors import Processor, Serving, serves
from longpoll_broker.testing.brokers import StartBroker
from longpoll_protocol.codes import RequestCode
from longpoll_spec.policy import preset


def nothing(*_arguments: Any) -> None:
    """A processor that answers nothing."""


def other(*_arguments: Any) -> None:
    """Another one."""


def test_two_services_that_serve_one_code_are_refused() -> None:
    """With the code's number; codes of their own are put together."""
    first: dict[int, Processor] = {RequestCode.PULL_MESSAGE: nothing, RequestCode.HEART_BEAT: nothing}

    assert together([first, {RequestCode.SEND_MESSAGE: other}]) == first | {RequestCode.SEND_MESSAGE: other}
    with pytest.raises(CodeServedTwiceError, match=r"\[11\]"):
        together([first, {RequestCode.PULL_MESSAGE: other}])


class Greeter(Serving):
    """Serves two codes by one method, and has another that serves none."""

    @serves(RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT)
    def greet(self, *_arguments: Any) -> None:
        """Say nothing."""

    def helps(self, *_arguments: Any) -> None:
        """No processor."""


class Louder(Greeter):
    """Says it otherwise, and is not marked anew."""

    def greet(self, *_arguments: Any) -> None:
        """Say nothing, louder."""


@pytest.mark.parametrize("kind", [Greeter, Louder])
def test_a_service_serves_what_its_methods_are_marked_with(kind: type[Greeter]) -> None:
    """By the method that it has under that name."""
    greeter = kind()
    assert greeter.processors == {RequestCode.PULL_MESSAGE: greeter.greet, RequestCode.HEART_BEAT: greeter.greet}


def test_a_service_that_serves_one_code_twice_is_refused() -> None:
    """Where its class is defined, also when one of the two is inherited."""
    with pytest.raises(AssertionError, match="Stammerer serves 34 twice"):

        class Stammerer(Greeter):
            @serves(RequestCode.HEART_BEAT)
            def again(self, *_arguments: Any) -> None: ...


@pytest.mark.parametrize(("policy", "more"), [("strict", set()), ("rocketmq-5", {361, 905})])
def test_a_room_serves_what_its_services_say(start_broker: StartBroker, policy: str, more: set[int]) -> None:
    """Nothing is left out between a service and the handler: 26 codes, and what a policy adds."""
    broker = start_broker(policy=preset(policy))
    pulls, sends = broker.pulling.processors, broker.sending.processors

    assert set(sends) == {10, 310, 320, 36, 37} | ({370} if policy == "rocketmq-5" else set())
    assert {RequestCode.PULL_MESSAGE.value} <= set(pulls)
    assert more <= set(pulls)
    assert len(together([pulls, sends, broker.handler.administering.processors])) >= 26
