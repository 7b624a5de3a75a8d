import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** How many messages a second Java's client sends asynchronously, and the processor time of its process. */
public class AsyncSends {
    private static final AtomicInteger FAILED = new AtomicInteger();

    private static void send(DefaultMQProducer producer, String topic, int count, int inFlight) throws Exception {
        Semaphore room = new Semaphore(inFlight);
        byte[] body = new byte[128];
        for (int number = 0; number < count; number++) {
            room.acquire();
            producer.send(new Message(topic, body), new SendCallback() {
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
        room.acquire(inFlight);
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        int inFlight = Integer.parseInt(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        OperatingSystemMXBean machine = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        // Thrice as many as are counted, for the compiler to have seen them.
        send(producer, arguments[1], 3 * count, inFlight);
        long cpuNs = machine.getProcessCpuTime();
        long wallNs = System.nanoTime();
        send(producer, arguments[1], count, inFlight);
        wallNs = System.nanoTime() - wallNs;
        cpuNs = machine.getProcessCpuTime() - cpuNs;
        System.out.printf(
            "{\"count\": %d, \"failed\": %d, \"wall_s\": %.6f, \"cpu_s\": %.6f}%n", count, FAILED.get(), wallNs / 1e9, cpuNs / 1e9);
        producer.shutdown();
        System.exit(0);
    }
}
