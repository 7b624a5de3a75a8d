// A real Java client that plays one story; the judgement is `real_clients.py`'s.
//
// Arguments: name server, topic, group, story (bulk, orderly, sql, retry or transaction), messages to send,
// an SQL92 expression or "-", access key or "-", secret key or "-".
// Output: one JSON line per consumed message: [body, tag, key, property "number", queue, offset, reconsume times].
// It consumes until its input ends.

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
    /** The test has the same: a busy machine is no fault of a broker. */
    private static final int PATIENCE_MS = 600_000;
    private static final Set<String> PUT_OFF = ConcurrentHashMap.newKeySet();

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
        RPCHook hook = args[6].equals("-") ? null : new AclClientRPCHook(new SessionCredentials(args[6], args[7]));
        if (story.equals("transaction")) {
            transact(args);
        } else {
            send(args, hook);
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setMaxReconsumeTimes(story.equals("retry") ? 2 : -1);
        consumer.setSuspendCurrentQueueTimeMillis(10);
        if (args[5].equals("-")) {
            consumer.subscribe(topic, "*");
        } else {
            consumer.subscribe(topic, MessageSelector.bySql(args[5]));
        }
        if (story.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                MessageExt message = messages.get(0);
                if (message.getQueueOffset() % 50 == 7 && PUT_OFF.add(message.getKeys())) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                tell(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                tell(messages);
                return story.equals("retry")
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        while (System.in.read() >= 0) {
            continue;
        }
        // A second copy of a message would come soon after the first.
        new CountDownLatch(1).await(300, TimeUnit.MILLISECONDS);
        consumer.shutdown();
        System.exit(0);
    }

    private static void send(String[] args, RPCHook hook) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[2] + "-producer", hook);
        producer.setNamesrvAddr(args[0]);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.setSendMsgTimeout(PATIENCE_MS);
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
    // of those the check, which the broker must ask for, commits all but each ninth message of all. It goes on being
    // asked while the messages are consumed.
    private static void transact(String[] args) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(args[2] + "-producer");
        producer.setNamesrvAddr(args[0]);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.setSendMsgTimeout(PATIENCE_MS);
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
                // A broker may ask before the work's own answer has come: the answer is the same.
                int number = Integer.parseInt(message.getUserProperty("number"));
                return number % 3 == 1 || number % 9 == 8
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
    }

    private static synchronized void tell(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            System.out.printf("[\"%s\",\"%s\",\"%s\",\"%s\",%d,%d,%d]%n",
                new String(message.getBody(), StandardCharsets.UTF_8), message.getTags(), message.getKeys(),
                message.getUserProperty("number"), message.getQueueId(), message.getQueueOffset(),
                message.getReconsumeTimes());
        }
        System.out.flush();
    }
}
