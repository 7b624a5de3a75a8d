// What Java's tools read in message ids: one line each, "ID milliseconds address process", among lines of a log.

import org.apache.rocketmq.common.message.MessageClientIDSetter;

public class ReadId {
    public static void main(String[] ids) {
        for (String id : ids) {
            System.out.printf("ID %d %s %d%n", MessageClientIDSetter.getNearlyTimeFromID(id).getTime(),
                MessageClientIDSetter.getIPStrFromID(id), MessageClientIDSetter.getPidFromID(id));
        }
    }
}
