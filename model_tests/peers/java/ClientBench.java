import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * What Java's client does beside ours in `client_bench.py`: one JSON line, a row for each measure.
 *
 * <p>Arguments: name server, topic of sends, topic of latencies, topic with stored messages, their number, asynchronous
 * sends, synchronous sends, messages whose latency is taken, a name that no group has had. Everything is done thrice
 * without counting before it is counted, for the compiler to have seen it; the stored messages are read once before.
 */
public class ClientBench {
    private static final int IN_FLIGHT = 64;
    private static final OperatingSystemMXBean MACHINE =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final AtomicInteger FAILED = new AtomicInteger();
    private static final StringBuilder ROWS = new StringBuilder();
    private static final byte[] BODY = new byte[128];

    private static void row(String name, int count, long wallNs, long cpuNs, double p50Ms, double p99Ms) {
        ROWS.append(ROWS.length() == 0 ? "{" : ", ").append(String.format(
            "\"%s\": {\"count\": %d, \"failed\": %d, \"wall_s\": %.6f, \"cpu_s\": %.6f, \"p50_ms\": %.4f, \"p99_ms\": %.4f}",
            name, count, FAILED.getAndSet(0), wallNs / 1e9, cpuNs / 1e9, p50Ms, p99Ms));
    }

    private static void sendMany(DefaultMQProducer producer, String topic, int count) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        for (int number = 0; number < count; number++) {
            room.acquire();
            producer.send(new Message(topic, BODY), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    FAILED.incrementAndGet();
                    room.release();
                }
            });
        }
        room.acquire(IN_FLIGHT);
    }

    private static void sendOneByOne(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            producer.send(new Message(topic, BODY));
        }
    }

    private static DefaultMQPushConsumer consumer(
        String nameServer, String group, String topic, ConsumeFromWhere from, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(group);
        made.setConsumeFromWhere(from);
        made.subscribe(topic, "*");
        made.registerMessageListener(listener);
        made.start();
        return made;
    }

    /** When the message with this number came; one may come twice, or late, and is then not the one awaited. */
    private static long arrival(LinkedBlockingQueue<long[]> delivered, long number) throws InterruptedException {
        long[] came;
        do {
            came = delivered.poll(30, TimeUnit.SECONDS);
            if (came == null) {
                throw new IllegalStateException("message " + number + " has not come in 30 s");
            }
        } while (came[0] != number);
        return came[1];
    }

    private static void latencies(DefaultMQProducer producer, String nameServer, String topic, int count, String group)
        throws Exception {
        LinkedBlockingQueue<long[]> delivered = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = consumer(nameServer, group, topic, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            (messages, context) -> {
                long now = System.nanoTime();
                messages.forEach(message -> delivered.add(new long[] {ByteBuffer.wrap(message.getBody()).getLong(), now}));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        // Until the group has its queues a message may be stored before where it begins.
        do {
            producer.send(new Message(topic, BODY));
        } while (delivered.poll(200, TimeUnit.MILLISECONDS) == null);
        // One queue is begun by now; the others are before nothing has come for a while.
        while (delivered.poll(500, TimeUnit.MILLISECONDS) != null) {
            continue;
        }
        double[] tookMs = new double[count];
        for (int round = 0; round < 4; round++) {
            for (int number = 0; number < count; number++) {
                long identity = (long) round * count + number + 1;
                byte[] body = ByteBuffer.allocate(BODY.length).putLong(identity).array();
                long begun = System.nanoTime();
                producer.send(new Message(topic, body), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {}

                    @Override
                    public void onException(Throwable error) {
                        FAILED.incrementAndGet();
                    }
                });
                tookMs[number] = (arrival(delivered, identity) - begun) / 1e6;
            }
        }
        consumer.shutdown();
        Arrays.sort(tookMs);
        row("latency", count, (long) (Arrays.stream(tookMs).sum() * 1e6), 0, tookMs[count / 2], tookMs[count * 99 / 100]);
    }

    private static void drain(String nameServer, String topic, int stored, String group, boolean counts) throws Exception {
        AtomicInteger left = new AtomicInteger(stored);
        AtomicLong firstNs = new AtomicLong();
        AtomicLong firstCpuNs = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(nameServer, group, topic, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            (messages, context) -> {
                if (firstNs.get() == 0 && firstNs.compareAndSet(0, System.nanoTime())) {
                    firstCpuNs.set(MACHINE.getProcessCpuTime());
                }
                if (left.addAndGet(-messages.size()) <= 0) {
                    done.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        done.await();
        long wallNs = System.nanoTime() - firstNs.get();
        long cpuNs = MACHINE.getProcessCpuTime() - firstCpuNs.get();
        consumer.shutdown();
        if (counts) {
            row("drain", stored, wallNs, cpuNs, 0, 0);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0];
        int stored = Integer.parseInt(arguments[4]);
        int many = Integer.parseInt(arguments[5]);
        int few = Integer.parseInt(arguments[6]);
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        sendMany(producer, arguments[1], 3 * many);
        long cpuNs = MACHINE.getProcessCpuTime();
        long wallNs = System.nanoTime();
        sendMany(producer, arguments[1], many);
        row("async", many, System.nanoTime() - wallNs, MACHINE.getProcessCpuTime() - cpuNs, 0, 0);
        sendOneByOne(producer, arguments[1], 3 * few);
        cpuNs = MACHINE.getProcessCpuTime();
        wallNs = System.nanoTime();
        sendOneByOne(producer, arguments[1], few);
        row("sync", few, System.nanoTime() - wallNs, MACHINE.getProcessCpuTime() - cpuNs, 0, 0);
        latencies(producer, nameServer, arguments[2], Integer.parseInt(arguments[7]), "latency-" + arguments[8]);
        producer.shutdown();
        drain(nameServer, arguments[3], stored, "before-" + arguments[8], false);
        drain(nameServer, arguments[3], stored, "drain-" + arguments[8], true);
        System.out.println(ROWS.append("}"));
        System.exit(0);
    }
}
