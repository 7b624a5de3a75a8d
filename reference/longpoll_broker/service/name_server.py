"""A name server that knows one broker: its own.

Serves 105 and 106; a code that it does not know is answered 3 as by 5.x, or, under a policy of 4.9, not at all. Leaves
out other brokers' registration.

Source: `DefaultRequestProcessor.java` (namesrv), `RouteInfoManager.java`.
"""

from __future__ import annotations

import msgspec
from attrs import define
from msgspec import UNSET, structs

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.pull import FAQ
from longpoll_broker.core.topics import Topics
from longpoll_broker.core.traits import STRICT_TRAITS, Traits
from longpoll_broker.service.channel import Channel, Outbox, Parts
from longpoll_broker.service.exchange import Processor, answer, serve
from longpoll_broker.wire.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_broker.wire.codes import RequestCode, ResponseCode
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.frame import Serialisation
from longpoll_broker.wire.headers import GetRouteInfoRequestHeader


@define(slots=True, eq=False)
class NameServer:
    """The handler of the name server's listener."""

    config: BrokerConfig
    topics: Topics
    broker_address: str
    """HOST:PORT that clients are told to go to."""
    traits: Traits = STRICT_TRAITS

    def opened(self, channel: Channel) -> None:
        """Nothing to do."""

    def closed(self, channel: Channel) -> None:
        """Nothing to do."""

    def received(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """Serve one request."""
        processors: dict[int, Processor] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
        }
        if self.traits.answers_in_json and command.serialisation is not Serialisation.JSON:
            command = structs.replace(command, serialisation=Serialisation.JSON)
        if command.code in processors or not self.traits.name_server_is_silent:
            serve(processors, channel, command, outbox)

    def route(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """105: the queues of a topic and where they are; 17 when nobody has it."""
        name = GetRouteInfoRequestHeader.decode(command.ext_fields).topic
        topic = self.topics.get(name)
        if topic is None:
            return answer(
                command,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {name[:128]}\n{FAQ}",
            )
        data = TopicRouteData(
            broker_datas=[self._broker()],
            queue_datas=[
                QueueData(
                    broker_name=self.config.broker_name,
                    read_queue_nums=topic.read_queue_nums,
                    write_queue_nums=topic.write_queue_nums,
                    perm=topic.perm,
                    topic_sys_flag=topic.topic_sys_flag,
                )
            ],
        )
        return answer(command, ResponseCode.SUCCESS, None, None, data.encode())

    def cluster(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """106: the cluster and its one broker."""
        config = self.config
        info = {
            "brokerAddrTable": {config.broker_name: self._broker()},
            "clusterAddrTable": {config.cluster_name: [config.broker_name]},
        }
        return answer(command, ResponseCode.SUCCESS, None, None, msgspec.json.encode(info))

    def _broker(self) -> BrokerData:
        return BrokerData(
            cluster=self.config.cluster_name,
            broker_name=self.config.broker_name,
            broker_addrs={self.config.broker_id: self.broker_address},
            enable_acting_master=False if self.traits.acting_master_fields else UNSET,
        )
