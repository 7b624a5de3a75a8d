// A member of a group on Java's client: consumes until its standard input ends. `model_tests/client/failing/member.py`
// does the same.
//
// Arguments: name server, topic, group, kind ("orderly", or else on threads).
// Output: a line of JSON a message, before it counts as consumed: [moment in ns, queue id, queue offset, body].

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

public class Member {
    private static final int STARTS = 60;

    public static void main(String[] args) {
        try {
            consume(args);
        } catch (Exception failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    // A start fails while no server answers; a consumer whose start has failed is of no use any more.
    private static DefaultMQPushConsumer started(String[] args) throws Exception {
        for (int left = STARTS; ; left--) {
            DefaultMQPushConsumer consumer = made(args);
            try {
                consumer.start();
                return consumer;
            } catch (MQClientException | IllegalStateException failure) {
                if (left == 0) {
                    throw failure;
                }
                consumer.shutdown();
                new CountDownLatch(1).await(1, TimeUnit.SECONDS);
            }
        }
    }

    private static DefaultMQPushConsumer made(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPollNameServerInterval(3_000);
        consumer.setHeartbeatBrokerInterval(5_000);
        consumer.setPersistConsumerOffsetInterval(1_000);
        consumer.subscribe(args[1], "*");
        if (args[3].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                tell(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                tell(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        return consumer;
    }

    private static void consume(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = started(args);
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
        System.out.flush();
    }

    private static synchronized void tell(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            // System.nanoTime is the clock that Python calls monotonic, on Linux.
            System.out.printf("[%d,%d,%d,\"%s\"]%n", System.nanoTime(), message.getQueueId(), message.getQueueOffset(),
                new String(message.getBody(), StandardCharsets.UTF_8));
        }
        System.out.flush();
    }
}
