// A hold table: pulls wait here until a message comes or their time is up. Speaks the protocol of `longpoll dojo`.
import java.io.*;
import java.util.*;

class HoldTable {
    record Pull(int id, int connection, String queue, int offset, long deadlineMs) {}

    long nowMs;
    final Map<String, List<String>> logs = new HashMap<>(); // queue -> its messages
    final List<Pull> held = new ArrayList<>(); // the pulls that wait
    final Set<Integer> closed = new HashSet<>(); // connections
    final Map<Integer, Runnable> paused = new HashMap<>(); // id -> what is done when it goes on from its step point
    String step; // where the message that is at work has stopped

    void stop(String step, int id, Runnable next) {
        this.step = step;
        paused.put(id, next);
    }

    void pull(Pull pull) {
        if (look(pull)) return;
        stop("between_check_and_hold", pull.id(), () -> {
            if (closed.contains(pull.connection())) return;
            held.add(pull);
            // A message that came before the hold woke no pull.
            stop("between_hold_and_recheck", pull.id(), () -> wake(pull.queue()));
        });
    }

    void arrive(int id, String queue, String message) {
        logs.computeIfAbsent(queue, name -> new ArrayList<>()).add(message);
        stop("between_append_and_wake", id, () -> wake(queue));
    }

    void tick() {
        held.removeIf(this::look);
    }

    void close(int connection) {
        closed.add(connection);
        held.removeIf(pull -> pull.connection() == connection);
    }

    void wake(String queue) {
        held.removeIf(pull -> pull.queue().equals(queue) && look(pull));
    }

    // Answer a pull, if there is something for it or its time is up.
    boolean look(Pull pull) {
        List<String> log = logs.getOrDefault(pull.queue(), List.of());
        List<String> messages = log.subList(Math.min(pull.offset(), log.size()), log.size());
        if (messages.isEmpty() && nowMs < pull.deadlineMs()) return false;
        String quoted = messages.isEmpty() ? "" : "\"" + String.join("\",\"", messages) + "\"";
        int next = pull.offset() + messages.size();
        say("{\"answer\":" + pull.id() + ",\"messages\":[" + quoted + "],\"offset_next\":" + next + "}");
        return true;
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    // A field of a flat line, as it stands there; the dojo writes no letter that would have to be escaped.
    static String field(String line, String name) {
        int at = line.indexOf("\"" + name + "\":");
        return at < 0 ? "0" : line.substring(at + name.length() + 3).split("[,}]")[0].replace("\"", "");
    }

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        HoldTable table = new HoldTable();
        for (String line; (line = in.readLine()) != null; ) {
            String type = field(line, "type"), queue = field(line, "queue");
            int id = Integer.parseInt(field(line, "id")), connection = Integer.parseInt(field(line, "connection"));
            if (type.equals("reset")) table = new HoldTable();
            table.nowMs = Long.parseLong(field(line, "now_ms"));
            table.step = null;
            switch (type) {
                case "pull" -> {
                    int offset = Integer.parseInt(field(line, "offset"));
                    long deadlineMs = table.nowMs + Long.parseLong(field(line, "wait_ms"));
                    table.pull(new Pull(id, connection, queue, offset, deadlineMs));
                }
                case "arrive" -> table.arrive(id, queue, field(line, "message"));
                case "tick" -> table.tick();
                case "close" -> table.close(connection);
                case "go" -> table.paused.remove(id).run();
            }
            say(table.step == null ? "{\"done\":" + id + "}" : "{\"at\":\"" + table.step + "\",\"id\":" + id + "}");
        }
    }
}
