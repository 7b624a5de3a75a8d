// What RocketMQ's own parser makes of SQL92 expressions; run from its source by test_java_sql92.py.
// A line in: the expression, a tab, then name=value of each property with commas between, all texts in hexadecimal.
// A line out: bad (cannot be parsed), error (throws when evaluated), true, false or null.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.parser.SelectorParser;

public class Sql92Oracle {
    static String text(String hexadecimal) {
        byte[] bytes = new byte[hexadecimal.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hexadecimal.substring(2 * i, 2 * i + 2), 16);
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static String outcome(String expression, Map<String, String> properties) {
        BooleanExpression parsed;
        try {
            parsed = SelectorParser.parse(expression);
        } catch (Throwable bad) {
            return "bad";
        }
        try {
            return String.valueOf(parsed.evaluate(new EvaluationContext() {
                public Object get(String name) {
                    return properties.get(name);
                }

                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            }));
        } catch (Throwable failed) {
            return "error";
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", -1);
            Map<String, String> properties = new HashMap<>();
            for (String pair : parts[1].isEmpty() ? new String[0] : parts[1].split(",")) {
                String[] sides = pair.split("=", -1);
                properties.put(text(sides[0]), text(sides[1]));
            }
            out.println(outcome(text(parts[0]), properties));
        }
        out.flush();
    }
}
