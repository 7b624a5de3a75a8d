import java.util.Comparator;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Does what the pages of rocketmq-dashboard do, by the same calls of MQAdminExt; a line each: its name and what came. */
public final class Dashboard {
    private interface Call { Object make() throws Exception; }

    private static void show(String name, Call call) {
        Object said;
        try {
            said = call.make();
        } catch (Exception error) {
            said = error.getClass().getSimpleName() + " " + error.getMessage();
        }
        System.out.println(("## " + name + " " + said).replace('\n', ' '));
    }

    public static void main(String[] args) throws Exception {
        String nameServer = args[0], broker = args[1], topic = args[2], group = args[3], id = args[4];
        DefaultMQAdminExt admin = new DefaultMQAdminExt(5000);
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("dashboard");
        admin.start();
        String clientId = admin.examineConsumerConnectionInfo(group).getConnectionSet().iterator().next().getClientId();
        // Cluster page.
        show("clusters", () -> new TreeMap<>(admin.examineBrokerClusterInfo().getBrokerAddrTable()).keySet());
        show("running", () -> admin.fetchBrokerRuntimeStats(broker).getTable().get("brokerVersionDesc"));
        show("settings", () -> admin.getBrokerConfig(broker).getProperty("brokerName"));
        show("brokers by name server", () -> admin.getNameServerAddressList());
        show("today", () -> admin.fetchBrokerRuntimeStats(broker).getTable().get("msgPutTotalTodayMorning"));
        show("rate", () -> admin.viewBrokerStatsData(broker, "GROUP_GET_NUMS", topic + "@" + group).getStatsDay().getClass());
        // Topics.
        show("topics", () -> admin.fetchAllTopicList().getTopicList().contains(topic));
        show("topics of cluster", () -> admin.fetchTopicsByCLuster("DefaultCluster").getTopicList().contains(topic));
        show("topic settings", () -> admin.getAllTopicConfig(broker, 5000).getTopicConfigTable().get(topic));
        show("topic status", () -> offsets(admin.examineTopicStats(topic).getOffsetTable()));
        show("topic route", () -> admin.examineTopicRouteInfo(topic).getQueueDatas());
        show("groups of topic", () -> new TreeSet<>(admin.queryTopicConsumeByWho(topic).getGroupList()));
        TopicConfig made = new TopicConfig("Dashboard", 3, 3, 6);
        show("make topic", () -> { admin.createAndUpdateTopicConfig(broker, made); return "made"; });
        show("made topic", () -> admin.examineTopicRouteInfo("Dashboard").getQueueDatas());
        // Groups.
        show("groups", () -> admin.getAllSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().containsKey(group));
        SubscriptionGroupConfig other = new SubscriptionGroupConfig();
        other.setGroupName("DashboardGroup");
        other.setRetryMaxTimes(7);
        show("make group", () -> { admin.createAndUpdateSubscriptionGroupConfig(broker, other); return "made"; });
        show("made group", () -> admin.examineSubscriptionGroupConfig(broker, "DashboardGroup").getRetryMaxTimes());
        show("progress", () -> offsets(admin.examineConsumeStats(group).getOffsetTable()));
        show("progress of topic", () -> offsets(admin.examineConsumeStats(group, topic).getOffsetTable()));
        show("progress of broker", () -> admin.fetchConsumeStatsInBroker(broker, false, 5000).getConsumeStatsList().isEmpty());
        show("time spans", () -> admin.queryConsumeTimeSpan(topic, group).size());
        show("members", () -> admin.examineConsumerConnectionInfo(group).getConnectionSet().size());
        show("subscription", () -> admin.examineConsumerConnectionInfo(group).getSubscriptionTable().get(topic).getSubString());
        show("member", () -> admin.getConsumerRunningInfo(group, clientId, false).getSubscriptionSet().isEmpty());
        show("no member", () -> admin.examineConsumerConnectionInfo("nobody"));
        DefaultMQProducer producer = new DefaultMQProducer("DashboardProducer");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        show("send", () -> producer.send(new Message("Dashboard", "tag", "key", new byte[] {1})).getSendStatus());
        // Its first heartbeat may be on its way.
        for (int tries = 0; tries < 100 && !isThere(admin); tries++) {
            Thread.sleep(100);
        }
        show("producers", () -> admin.examineProducerConnectionInfo("DashboardProducer", "Dashboard").getConnectionSet().size());
        // Messages.
        show("message by id", () -> told(admin.viewMessage(topic, id)));
        show("message by key", () -> {
            QueryResult found = admin.queryMessage(topic, "k1", 64, 0, System.currentTimeMillis() + 10_000);
            return found.getMessageList().size() + " " + told(found.getMessageList().get(0));
        });
        show("track", () -> admin.messageTrackDetail(admin.viewMessage(topic, id)));
        show("consume again", () -> admin.consumeMessageDirectly(group, clientId, topic, id).getConsumeResult());
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer("TOOLS_CONSUMER");
        puller.setNamesrvAddr(nameServer);
        puller.start();
        show("messages by time", () -> {
            StringBuilder found = new StringBuilder();
            TreeSet<MessageQueue> queues = new TreeSet<>(puller.fetchSubscribeMessageQueues(topic));
            for (MessageQueue queue : queues) {
                long first = puller.searchOffset(queue, 0), end = puller.searchOffset(queue, System.currentTimeMillis());
                found.append(queue.getQueueId()).append(' ').append(first).append(' ').append(end).append(':');
                for (MessageExt each : puller.pull(queue, "*", first, 32).getMsgFoundList()) {
                    found.append(' ').append(told(each));
                }
            }
            return found;
        });
        // What is taken away again.
        show("reset", () -> new TreeSet<>(admin.resetOffsetByTimestamp(topic, group, 0, true).values()));
        show("delete group", () -> { admin.deleteSubscriptionGroup(broker, "DashboardGroup"); return "deleted"; });
        TreeSet<String> brokers = new TreeSet<>(), servers = new TreeSet<>(admin.getNameServerAddressList());
        brokers.add(broker);
        show("delete topic", () -> { admin.deleteTopicInBroker(brokers, "Dashboard"); return "deleted"; });
        show("delete route", () -> { admin.deleteTopicInNameServer(servers, "Dashboard", "DefaultCluster"); return "deleted"; });
        show("deleted topic", () -> admin.examineTopicRouteInfo("Dashboard"));
        puller.shutdown();
        producer.shutdown();
        admin.shutdown();
        System.exit(0);
    }

    private static boolean isThere(DefaultMQAdminExt admin) {
        try {
            return !admin.examineProducerConnectionInfo("DashboardProducer", "Dashboard").getConnectionSet().isEmpty();
        } catch (Exception notYet) {
            return false;
        }
    }

    private static String told(MessageExt message) {
        return message.getTopic() + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + message.getKeys()
            + " " + message.getTags() + " " + new String(message.getBody());
    }

    private static <T> Object offsets(java.util.Map<MessageQueue, T> table) {
        TreeMap<MessageQueue, T> sorted = new TreeMap<>(Comparator.naturalOrder());
        sorted.putAll(table);
        StringBuilder found = new StringBuilder();
        for (java.util.Map.Entry<MessageQueue, T> each : sorted.entrySet()) {
            found.append(each.getKey().getTopic()).append(' ').append(each.getKey().getQueueId());
            found.append(' ').append(com.alibaba.fastjson.JSON.toJSONString(each.getValue())).append(' ');
        }
        return found;
    }
}
