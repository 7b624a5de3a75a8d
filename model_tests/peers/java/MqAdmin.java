import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs many commands of mqadmin in one machine: a line of tab-separated arguments each, what they print after "=== N". */
public final class MqAdmin {
    public static void main(String[] ignored) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int number = 0;
        // What a command fails with belongs to what it prints.
        System.setErr(System.out);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("=== " + number++);
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.println();
            System.out.flush();
        }
        System.exit(0);
    }
}
