// Requests, replies and the message trace on Java's client; what it tells is judged by `test_requests_java.py`.
//
// Arguments: what, and then
//   ask NAME_SERVER TOPIC COUNT          asks, and tells each reply's body in a line
//   reply NAME_SERVER TOPIC              replies to what comes until standard input ends; "ready" in a line once it does
//   send NAME_SERVER TOPIC TRACE_TOPIC   sends one traced message, tells its id, and stays until standard input ends
//   decode                               decodes the trace on standard input, and tells each line's fields
//
// What it tells begins with "= ": the client logs to standard output too.

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class Requests {
    /** The test's own limit is not longer: a machine with much else to do is slow to start a JVM, and what it waits for. */
    private static final long PATIENCE_MS = 600_000;

    public static void main(String[] args) {
        try {
            switch (args[0]) {
                case "ask" -> ask(args[1], args[2], Integer.parseInt(args[3]));
                case "reply" -> reply(args[1], args[2]);
                case "send" -> send(args[1], args[2], args[3]);
                default -> decode();
            }
            System.out.flush();
        } catch (Exception failure) {
            // The client's own threads would keep the process alive.
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static DefaultMQProducer started(DefaultMQProducer producer, String nameServer) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout((int) PATIENCE_MS);
        producer.setSendMsgTimeout((int) PATIENCE_MS);
        producer.start();
        return producer;
    }

    private static void ask(String nameServer, String topic, int count) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("java-asks"), nameServer);
        for (int number = 0; number < count; number++) {
            Message question = new Message(topic, ("question " + number).getBytes(StandardCharsets.UTF_8));
            System.out.println("= " + new String(producer.request(question, PATIENCE_MS).getBody(), StandardCharsets.UTF_8));
        }
        producer.shutdown();
    }

    private static void reply(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("java-replies"), nameServer);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout((int) PATIENCE_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("java: " + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes();
                    producer.send(MessageUtil.createReplyMessage(message, body), PATIENCE_MS);
                } catch (Exception failure) {
                    failure.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("= ready");
        waitForEnd();
        consumer.shutdown();
        producer.shutdown();
    }

    private static void waitForEnd() throws Exception {
        System.out.flush();
        while (System.in.read() >= 0) {
            continue;
        }
    }

    private static void send(String nameServer, String topic, String traceTopic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("java-traced", null, true, traceTopic), nameServer);
        Message message = new Message(topic, "red", "key-1", "traced".getBytes(StandardCharsets.UTF_8));
        System.out.println("= " + producer.send(message).getMsgId());
        waitForEnd();
        producer.shutdown();
    }

    private static void decode() throws Exception {
        String trace = new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(trace)) {
            TraceBean bean = context.getTraceBeans().get(0);
            // What follows a consumption has no topic, and names no broker.
            boolean isSend = context.getTraceType() == TraceType.Pub;
            System.out.println("= " + String.join("\t", context.getTraceType().toString(), bean.getMsgId(),
                String.valueOf(bean.getKeys()), isSend ? bean.getTopic() : "", isSend ? bean.getTags() : "",
                isSend ? bean.getStoreHost() : "", isSend ? String.valueOf(bean.getBodyLength()) : "",
                isSend ? String.valueOf(bean.getMsgType()) : "",
                context.getTraceType() == TraceType.SubBefore ? "" : String.valueOf(context.isSuccess()),
                context.getTraceType() == TraceType.SubAfter ? "" : String.valueOf(context.getGroupName())));
        }
    }
}
