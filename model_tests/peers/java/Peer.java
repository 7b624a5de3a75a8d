// A real Java client that plays one story; the judgement is `real_clients.py`'s.
//
// Arguments: name server, topic, group, story (bulk, orderly, sql, retry or transaction), messages to send, messages to expect,
// an SQL92 expression or "-", access key or "-", secret key or "-".
// Output: one JSON line per consumed message: [body, tag, key, property "number", queue, offset, reconsume times].

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

public class Peer {
    private static final String[] TAGS = {"red", "green", "blue"};
    private static final long PATIENCE_S = 90;
    private static final Set<String> PUT_OFF = ConcurrentHashMap.newKeySet();
    private static final Set<String> CHECKED = ConcurrentHashMap.newKeySet();

    public static void main(String[] args) {
        try {
            play(args);
        } catch (Exception failure) {
            // The client's own threads would keep the process alive.
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void play(String[] args) throws Exception {
        String topic = args[1];
        String story = args[3];
        RPCHook hook = args[7].equals("-") ? null : new AclClientRPCHook(new SessionCredentials(args[7], args[8]));
        if (story.equals("transaction")) {
            transact(args);
        } else {
            send(args, hook);
        }
        CountDownLatch left = new CountDownLatch(Integer.parseInt(args[5]));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setMaxReconsumeTimes(story.equals("retry") ? 2 : -1);
        consumer.setSuspendCurrentQueueTimeMillis(10);
        if (args[6].equals("-")) {
            consumer.subscribe(topic, "*");
        } else {
            consumer.subscribe(topic, MessageSelector.bySql(args[6]));
        }
        if (story.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                MessageExt message = messages.get(0);
                if (message.getQueueOffset() % 50 == 7 && PUT_OFF.add(message.getKeys())) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                tell(messages, left);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                tell(messages, left);
                return story.equals("retry")
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        boolean isDone = left.await(PATIENCE_S, TimeUnit.SECONDS);
        // A second copy of a message would come soon after the first.
        new CountDownLatch(1).await(300, TimeUnit.MILLISECONDS);
        System.out.flush();
        consumer.shutdown();
        System.exit(isDone ? 0 : 3);
    }

    private static void send(String[] args, RPCHook hook) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[2] + "-producer", hook);
        producer.setNamesrvAddr(args[0]);
        producer.start();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(args[1]);
        for (int number = 0; number < Integer.parseInt(args[4]); number++) {
            byte[] body = ("message-" + number).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(args[1], TAGS[number % TAGS.length], "key-" + number, body);
            message.putUserProperty("number", String.valueOf(number));
            SendStatus status = producer.send(message, queues.get(number % queues.size())).getSendStatus();
            if (status != SendStatus.SEND_OK) {
                throw new IllegalStateException(status.toString());
            }
        }
        producer.shutdown();
    }

    // The work commits every first message of three, rolls every second one back, and leaves every third one open;
    // of those the check, which the broker must ask for, commits all but each ninth message of all.
    private static void transact(String[] args) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(args[2] + "-producer");
        producer.setNamesrvAddr(args[0]);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                return switch ((Integer) number % 3) {
                    case 0 -> LocalTransactionState.COMMIT_MESSAGE;
                    case 1 -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> LocalTransactionState.UNKNOW;
                };
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                CHECKED.add(message.getKeys());
                return Integer.parseInt(message.getUserProperty("number")) % 9 == 8
                    ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (int number = 0; number < Integer.parseInt(args[4]); number++) {
            byte[] body = ("message-" + number).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(args[1], TAGS[number % TAGS.length], "key-" + number, body);
            message.putUserProperty("number", String.valueOf(number));
            producer.sendMessageInTransaction(message, number);
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (CHECKED.size() < Integer.parseInt(args[4]) / 3 && System.nanoTime() < deadline) {
            new CountDownLatch(1).await(20, TimeUnit.MILLISECONDS);
        }
        producer.shutdown();
    }

    private static synchronized void tell(List<MessageExt> messages, CountDownLatch left) {
        for (MessageExt message : messages) {
            System.out.printf("[\"%s\",\"%s\",\"%s\",\"%s\",%d,%d,%d]%n",
                new String(message.getBody(), StandardCharsets.UTF_8), message.getTags(), message.getKeys(),
                message.getUserProperty("number"), message.getQueueId(), message.getQueueOffset(),
                message.getReconsumeTimes());
            left.countDown();
        }
    }
}
