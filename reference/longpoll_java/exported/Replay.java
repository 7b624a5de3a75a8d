// Plays schedule.txt on an unchanged RocketMQ broker whose threads stop at the gates (breakpoints) of gates.btm, and
// reports each step. It needs only a JDK (11 or later): create class-path.txt and byteman.txt as README.md describes,
// then run `java Replay.java` in this folder. Exit code 0: the broker followed the run, with the result that README.md
// describes; 1: the broker behaved differently; 3: a thread did not reach its gate.

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Replay {
    static final long WITHIN_MS = 20_000, JUST_MS = 500;
    static final Set<String> PASSED = Set.of("held", "served", "rounded", "closed", "returned");
    static final int SUCCESS = 0;

    /** The broker did not do in time what the next step of the run needs. */
    static class NotFollowed extends RuntimeException {
        NotFollowed(String said) { super(said); }
    }

    /** The broker took a step that the specification does not allow. */
    static class Otherwise extends RuntimeException {
        Otherwise(String said) { super(said); }
    }

    /** A thread of the broker at a gate. */
    static class Arrival {
        String gate, thread, topic = "", suspends = "";
        int queue = -1, request = -1;
    }

    /** A connection to the broker, and its replies by opaque. */
    static class Peer {
        Socket socket;
        volatile boolean isOpen = true;
        final Map<Integer, String> headers = new HashMap<>();
        final Map<Integer, Long> cameMs = new HashMap<>();
    }

    /** A consumer. */
    static class Slot {
        String group;
        Peer peer;
        int opaque;
        long sentMs;
    }

    final Object lock = new Object();
    final List<Arrival> seen = new ArrayList<>();
    final Map<String, Arrival> standing = new LinkedHashMap<>();
    final Map<String, Socket> asking = new HashMap<>();
    final Map<Integer, Slot> slots = new HashMap<>();
    final Map<Integer, Integer> pulls = new HashMap<>();
    final Map<Integer, Integer> queueIds = new HashMap<>();
    Predicate<Arrival> stops = arrival -> false;
    final ServerSocket gates = new ServerSocket(0, 64, InetAddress.getLoopbackAddress());
    final Map<String, String> settings = new HashMap<>();
    final List<Process> brokers = new ArrayList<>();
    final List<Path> homes = new ArrayList<>();
    int port, masterPort, returning, opaques = 1, actedAt, endedAt, roundAt, ticks;
    long anchorMs, shownMs = -1;
    String topic, parent;
    List<String> steps;
    final Map<Integer, Peer> admins = new HashMap<>();

    Replay() throws IOException { }

    public static void main(String[] args) throws Exception {
        int code;
        Replay replay = new Replay();
        try {
            code = replay.run(Files.readAllLines(Path.of("schedule.txt")));
        } catch (NotFollowed error) {
            System.out.println("NOT FOLLOWED: " + error.getMessage());
            code = 3;
        } catch (Otherwise error) {
            System.out.println("OTHERWISE: " + error.getMessage());
            code = 1;
        } finally {
            replay.end();
        }
        System.exit(code);
    }

    int run(List<String> lines) throws Exception {
        List<String> before = new ArrayList<>(), steps = new ArrayList<>(), after = new ArrayList<>();
        List<String> into = steps;
        for (String line : lines) {
            if (line.isBlank() || line.startsWith("#")) continue;
            if (line.equals("BEFORE")) into = before;
            else if (line.equals("STEPS")) into = steps;
            else if (line.equals("AFTER")) into = after;
            else if (line.startsWith("SET ")) settings.put(line.split(" ", 3)[1], line.split(" ", 3)[2]);
            else into.add(line);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(this::end));
        this.steps = steps;
        start();
        parent = "replay-" + brokers.get(brokers.size() - 1).pid();
        topic = (isLmq() ? "%LMQ%" : "") + parent;
        for (int number = 0; number < Integer.parseInt(settings.get("queues")); number++) queueIds.put(number, number);
        for (String move : before) act(move);
        stopAll();
        for (String line : steps) {
            if (line.startsWith("step ")) System.out.println("\n" + line);
            else act(line);
        }
        endedAt = seen();
        System.out.println("\nAfter the run:");
        for (String move : after) act(move);
        System.out.println("\nThe run was followed to its end, and shows what README.md says.");
        return 0;
    }

    boolean isLmq() { return settings.get("lmq").equals("true"); }

    // -- the broker ---------------------------------------------------------------------------------------------------

    void start() throws Exception {
        Thread listener = new Thread(this::listen);
        listener.setDaemon(true);
        listener.start();
        if (Files.exists(Path.of("master.conf"))) masterPort = start("master", false);
        port = start("broker", true);
        if (masterPort == 0) masterPort = port;
    }

    /** Start a broker with its settings, wait until it listens, and return its port. */
    int start(String name, boolean isStopped) throws Exception {
        Path home = Files.createTempDirectory("replay-");
        homes.add(home);
        Files.createDirectories(home.resolve("conf"));
        for (String part : List.of("broker", "namesrv", "tools")) {
            Files.writeString(home.resolve("conf/logback_" + part + ".xml"),
                "<configuration><appender name='f' class='ch.qos.logback.core.FileAppender'><file>" + home.resolve(part + ".log")
                + "</file><encoder><pattern>%d %p %c - %m%n</pattern></encoder></appender><root level='WARN'><appender-ref ref='f'/>"
                + "</root></configuration>");
        }
        int port = freePort();
        Files.writeString(home.resolve("broker.conf"), Files.readString(Path.of(name + ".conf"))
            .replace("{home}", home.toString()).replace("{port}", "" + port).replace("{master}", "127.0.0.1:" + (masterPort + 1)));
        String classPath = Files.readString(Path.of("class-path.txt")).strip();
        String byteman = Arrays.stream(classPath.split(System.getProperty("path.separator")))
            .filter(path -> path.contains("byteman-")).findFirst().orElseThrow();
        List<String> command = new ArrayList<>(List.of("java", "-Xms256m", "-Xmx512m",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"));
        if (isStopped) command.add("-javaagent:" + byteman + "=script:" + Path.of("gates.btm").toAbsolutePath());
        command.addAll(List.of("-Dlongpoll.gate=" + gates.getLocalPort(), "-Drocketmq.home.dir=" + home, "-Duser.home=" + home,
            "-cp", classPath, "org.apache.rocketmq.broker.BrokerStartup", "-c", home.resolve("broker.conf").toString()));
        Process broker = new ProcessBuilder(command).redirectErrorStream(true)
            .redirectOutput(Path.of(name + ".out").toFile()).start();
        brokers.add(broker);
        long endMs = now() + 90_000;
        while (true) {
            try (Socket tried = new Socket(InetAddress.getLoopbackAddress(), port)) {
                return port;
            } catch (IOException error) {
                if (broker.waitFor(50, TimeUnit.MILLISECONDS)) throw new NotFollowed("the broker ended; see " + name + ".out");
                if (now() > endMs) throw new NotFollowed("the broker does not listen; see " + name + ".out");
            }
        }
    }

    static int freePort() throws IOException {
        for (int tried = 12_000; tried < 32_000; tried += 7) {
            try (ServerSocket one = new ServerSocket(tried); ServerSocket two = new ServerSocket(tried - 2);
                    ServerSocket three = new ServerSocket(tried + 1)) {
                return tried;
            } catch (IOException taken) {
                continue;
            }
        }
        throw new IOException("no three free ports");
    }

    synchronized void end() {
        if (brokers.isEmpty()) return;
        free(Set.of());
        try {
            // The brokers need not save anything, because their folders are deleted too.
            for (Process broker : brokers) broker.destroyForcibly().waitFor();
            for (Path home : homes) {
                try (var paths = Files.walk(home)) {
                    paths.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
                }
            }
        } catch (InterruptedException | IOException error) {
            System.out.println("cannot clean up " + homes + ": " + error);
        }
        brokers.clear();
    }

    // -- gates --------------------------------------------------------------------------------------------------------

    static final Pattern ASKED = Pattern.compile("GET /(\\w+)\\?(\\S*) HTTP/1\\.[01]");

    void listen() {
        while (true) {
            try {
                Socket socket = gates.accept();
                Thread hearer = new Thread(() -> hear(socket));
                hearer.setDaemon(true);
                hearer.start();
            } catch (IOException closed) {
                return;
            }
        }
    }

    void hear(Socket socket) {
        try {
            ByteArrayOutputStream read = new ByteArrayOutputStream();
            InputStream input = socket.getInputStream();
            while (!read.toString(StandardCharsets.UTF_8).contains("\r\n\r\n")) {
                int octet = input.read();
                if (octet < 0) return;
                read.write(octet);
            }
            Matcher line = ASKED.matcher(read.toString(StandardCharsets.UTF_8).split("\r\n")[0]);
            if (!line.matches()) return;
            Arrival arrival = new Arrival();
            arrival.gate = line.group(1);
            for (String part : line.group(2).split("&")) {
                String value = part.substring(part.indexOf('=') + 1);
                switch (part.substring(0, Math.max(part.indexOf('='), 0))) {
                    case "thread": arrival.thread = value; break;
                    case "topic": arrival.topic = value; break;
                    case "queue": arrival.queue = Integer.parseInt(value); break;
                    case "request": arrival.request = Integer.parseInt(value); break;
                    case "suspends": arrival.suspends = value; break;
                    default: break;
                }
            }
            synchronized (lock) {
                seen.add(arrival);
                lock.notifyAll();
                if (stops.test(arrival)) {
                    standing.put(arrival.thread, arrival);
                    asking.put(arrival.thread, socket);
                    return;
                }
            }
            tell(socket, "G");
        } catch (IOException gone) {
            return;
        }
    }

    static void tell(Socket socket, String word) {
        try (socket) {
            OutputStream output = socket.getOutputStream();
            output.write(("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n" + word).getBytes(StandardCharsets.UTF_8));
            output.flush();
        } catch (IOException gone) {
            return;
        }
    }

    /** Stop this run's threads from now on, after the current scan round, whose steps do not belong to the run. */
    void stopAll() {
        synchronized (lock) { stops = arrival -> arrival.gate.equals("round"); }
        until(() -> !isInRound(), WITHIN_MS);
        synchronized (lock) { stops = this::isOurs; }
    }

    boolean isInRound() {
        boolean isIn = false;
        for (Arrival each : seen) isIn = each.gate.equals("round") || isIn && !each.gate.equals("rounded");
        return isIn && standing.values().stream().noneMatch(each -> each.gate.equals("round"));
    }

    boolean isOurs(Arrival arrival) {
        if (PASSED.contains(arrival.gate) || arrival.gate.equals("notify") && role(arrival).equals("scanner")) return false;
        if (arrival.gate.equals("round")) return true;
        if (arrival.gate.equals("sweep") || arrival.gate.equals("remove")) {
            String last = "";
            for (Arrival each : seen) if (each.gate.equals("queue")) last = each.topic;
            return last.equals(topic);
        }
        if (!arrival.topic.isEmpty() && !arrival.topic.equals(topic)) return false;
        return arrival.request < 0 || pulls.containsKey(arrival.request);
    }

    String role(Arrival arrival) {
        if (arrival.thread.contains("ReputMessageService")) return "dispatcher";
        if (arrival.thread.contains("PullRequestHoldService")) return "scanner";
        if (arrival.thread.contains("AdminBroker")) return "operator";
        return (arrival.suspends.equals("false") ? "run" : "pull") + pulls.getOrDefault(arrival.request, -1);
    }

    boolean fits(Arrival arrival, Map<String, String> move) {
        return List.of(move.get("gates").split(",")).contains(arrival.gate) && role(arrival).equals(move.get("thread"))
            && (number(move, "slot") < 0 || number(move, "slot") == pulls.getOrDefault(arrival.request, -1))
            && (number(move, "queue") < 0 || queueIds.get(number(move, "queue")) == arrival.queue);
    }

    Arrival stands(Map<String, String> move) {
        synchronized (lock) {
            return standing.values().stream().filter(each -> fits(each, move)).findFirst().orElse(null);
        }
    }

    int seen() { synchronized (lock) { return seen.size(); } }

    boolean seenSince(int since, Predicate<Arrival> wanted) {
        synchronized (lock) { return seen.subList(since, seen.size()).stream().anyMatch(wanted); }
    }

    boolean until(BooleanSupplier isSo, long withinMs) {
        long endMs = now() + withinMs;
        synchronized (lock) {
            while (!isSo.getAsBoolean()) {
                long leftMs = endMs - now();
                if (leftMs <= 0) return false;
                try {
                    lock.wait(leftMs);
                } catch (InterruptedException error) {
                    throw new NotFollowed("interrupted");
                }
            }
            return true;
        }
    }

    static long now() { return System.nanoTime() / 1_000_000; }

    // -- moves --------------------------------------------------------------------------------------------------------

    static int number(Map<String, String> move, String name) { return Integer.parseInt(move.getOrDefault(name, "-1")); }

    void act(String line) throws Exception {
        String[] words = line.split(" ");
        Map<String, String> move = new HashMap<>();
        for (int each = 1; each < words.length; each++) move.put(words[each].split("=", 2)[0], words[each].split("=", 2)[1]);
        String said = act(words[0], move);
        if (!said.isEmpty()) System.out.println("    " + said);
    }

    String act(String kind, Map<String, String> move) throws Exception {
        int slot = number(move, "slot");
        switch (kind) {
            case "create": return create(move);
            case "send": return send(move);
            case "pull": return pull(slot, move);
            case "close": return close(slot);
            case "commit": return commit(slot, move);
            case "offset": return offset(slot, move);
            case "align": return align();
            case "tick": return tick(move);
            case "deadline": return deadline(slot);
            case "stop": return stop();
            case "until": return come(move);
            case "go": answer(move, "G"); return "";
            case "throw": return throwing(move);
            case "free": free(move.containsKey("gates") ? Set.of(move.get("gates").split(",")) : Set.of()); return "";
            case "answer": return answered(slot, move.getOrDefault("word", ""));
            case "silent": refuseReply(slot); return "pull " + slot + " is unanswered";
            case "gone": refuseReply(slot); return "the connection of pull " + slot + " ended, and no answer came";
            case "untouched": return untouched(slot);
            case "look": return look(slot);
            case "visit": return visit(number(move, "queue"));
            case "unvisited": return unvisited(number(move, "queue"));
            case "acts": asked(905, least(1, port), new byte[0], port); return "the slave acts as master";
            case "returns": return returns();
            case "broke_off": return brokeOff();
            case "ordered": numberQueues(steps); return "";
            default: throw new NotFollowed("no such move: " + kind);
        }
    }

    String come(Map<String, String> move) {
        Arrival[] found = new Arrival[1];
        boolean came = until(() -> {
            found[0] = stands(move);
            for (int each = actedAt; found[0] == null && each < seen.size(); each++) {
                if (PASSED.contains(seen.get(each).gate) && fits(seen.get(each), move)) found[0] = seen.get(each);
            }
            return found[0] != null;
        }, WITHIN_MS);
        if (!came) throw new NotFollowed(move.get("thread") + " did not reach " + move.get("gates"));
        return found[0].thread + (PASSED.contains(found[0].gate) ? " passes " : " pauses at ") + found[0].gate;
    }

    Arrival answer(Map<String, String> move, String word) {
        Socket socket;
        Arrival found;
        synchronized (lock) {
            found = stands(move);
            if (found == null) return null;
            actedAt = seen.size();
            if (found.gate.equals("round")) {
                roundAt = actedAt;
                anchorMs = now();
                ticks = 0;
            }
            if (found.gate.equals("dispatch")) shownMs = now();
            standing.remove(found.thread);
            socket = asking.remove(found.thread);
        }
        tell(socket, word);
        return found;
    }

    String throwing(Map<String, String> move) {
        Arrival found = answer(move, "T");
        if (found == null) throw new NotFollowed(move.get("thread") + " is not at " + move.get("gates"));
        return found.thread + " throws at " + found.gate;
    }

    void free(Set<String> kept) {
        List<Socket> waiting = new ArrayList<>();
        synchronized (lock) {
            stops = arrival -> kept.contains(arrival.gate);
            actedAt = seen.size();
            for (String thread : new ArrayList<>(standing.keySet())) {
                if (!kept.contains(standing.get(thread).gate)) {
                    standing.remove(thread);
                    waiting.add(asking.remove(thread));
                }
            }
        }
        for (Socket socket : waiting) tell(socket, "G");
    }

    String create(Map<String, String> move) throws IOException {
        Map<String, String> fields = new LinkedHashMap<>(Map.of("topic", parent, "defaultTopic", "TBW102",
            "readQueueNums", move.get("number"), "writeQueueNums", move.get("number"), "perm", "6",
            "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"));
        for (int at : new LinkedHashSet<>(List.of(masterPort, port))) asked(17, fields, new byte[0], at);
        return "";
    }

    /** The fields of a message about a group's least broker id (`NotifyMinBrokerIdChangeRequestHeader`). */
    static Map<String, String> least(int number, int at) {
        return new LinkedHashMap<>(Map.of("minBrokerId", "" + number, "brokerName", "java-broker", "minBrokerAddr", "127.0.0.1:" + at));
    }

    String returns() throws IOException {
        Map<String, String> fields = least(0, masterPort);
        fields.put("haBrokerAddr", "127.0.0.1:" + (masterPort + 1));
        actedAt = seen();
        returning = opaques++;
        request(admin(port), 905, returning, fields, new byte[0]);
        return "the slave learns that its master is back";
    }

    String brokeOff() throws IOException {
        Peer peer = admin(port);
        if (!until(() -> peer.headers.containsKey(returning), WITHIN_MS)) {
            throw new NotFollowed("the broker does not respond to the message that its master is back");
        }
        String header;
        synchronized (lock) { header = peer.headers.get(returning); }
        if (field(header, "code").equals("0")) throw new Otherwise("the traversal after the master's return reaches its end");
        return "the message about the master is answered with code " + field(header, "code") + ": " + field(header, "remark");
    }

    String send(Map<String, String> move) throws IOException {
        Map<String, String> fields = new LinkedHashMap<>(Map.of("producerGroup", "replay", "topic", parent,
            "defaultTopic", "TBW102", "defaultTopicQueueNums", "1", "queueId", "" + queueIds.get(number(move, "queue")),
            "sysFlag", "0", "bornTimestamp", "" + System.currentTimeMillis(), "flag", "0"));
        fields.putAll(Map.of("properties", isLmq() ? "INNER_MULTI_DISPATCH\\u0001" + topic + "\\u0002" : "",
            "reconsumeTimes", "0", "unitMode", "false", "batch", "false"));
        actedAt = seen();
        String reply = asked(10, fields, "message".getBytes(StandardCharsets.UTF_8), masterPort);
        return "acknowledged at offset " + field(reply, "queueOffset");
    }

    String pull(int number, Map<String, String> move) throws IOException {
        Slot slot = slots.computeIfAbsent(number, key -> new Slot());
        slot.group = parent + "-" + number;
        if (slot.peer == null || !slot.peer.isOpen) slot.peer = connect(port);
        slot.opaque = opaques++;
        boolean isPrime = "prime".equals(move.get("word"));
        int commits = number(move, "commits");
        if (!isPrime) synchronized (lock) { pulls.put(slot.opaque, number); }
        Map<String, String> fields = new LinkedHashMap<>(Map.of("consumerGroup", slot.group, "topic", topic,
            "queueId", "" + queueIds.get(number(move, "queue")), "queueOffset", move.get("number"), "maxMsgNums", "32",
            "sysFlag", "" + (6 | (commits >= 0 ? 1 : 0)), "commitOffset", "" + Math.max(commits, 0),
            "suspendTimeoutMillis", isPrime ? "1" : settings.get("hold_ms"), "subscription", "*", "subVersion", "0"));
        fields.put("expressionType", "TAG");
        actedAt = seen();
        slot.sentMs = now();
        request(slot.peer, 11, slot.opaque, fields, new byte[0]);
        return "";
    }

    String close(int number) throws IOException {
        actedAt = seen();
        slots.get(number).peer.isOpen = false;
        slots.get(number).peer.socket.close();
        if (!until(() -> seenSince(actedAt, each -> each.gate.equals("closed")), WITHIN_MS)) {
            throw new NotFollowed("the broker does not notice that the channel is closed");
        }
        return "the broker sees that the channel is closed";
    }

    String commit(int slot, Map<String, String> move) throws IOException {
        Map<String, String> fields = group(slot);
        fields.put("commitOffset", move.get("number"));
        asked(15, fields, new byte[0], port);
        return "committed " + move.get("number");
    }

    String offset(int slot, Map<String, String> move) throws IOException {
        String said = field(asked(14, group(slot), new byte[0], port), "offset");
        if (!said.equals(move.get("number"))) {
            throw new Otherwise("the group's offset is " + said + ", but the specification expects " + move.get("number"));
        }
        return "the group's offset is " + said;
    }

    Map<String, String> group(int slot) {
        return new LinkedHashMap<>(Map.of("consumerGroup", slots.get(slot).group, "topic", topic, "queueId", "" + queueIds.get(0)));
    }

    String align() {
        int since = seen();
        until(() -> seenSince(since, each -> each.gate.equals("rounded")), WITHIN_MS);
        anchorMs = now();
        ticks = 0;
        return "";
    }

    String tick(Map<String, String> move) {
        synchronized (lock) {
            if (slots.values().stream().noneMatch(slot -> slot.peer.isOpen && !slot.peer.headers.containsKey(slot.opaque))) {
                return "no pull waits, so no time has to pass";
            }
        }
        if (ticks == 0) anchorMs = Math.max(anchorMs, now() - JUST_MS);
        ticks += number(move, "number");
        long atMs = anchorMs + ticks * Long.parseLong(settings.get("tick_ms"));
        until(() -> now() >= atMs, Math.max(0, atMs - now()));
        return move.get("number") + " tick of " + settings.get("tick_ms") + " ms has passed";
    }

    String deadline(int number) {
        long atMs = slots.get(number).sentMs + Long.parseLong(settings.get("hold_ms"));
        until(() -> now() >= atMs, Math.max(0, atMs - now()));
        return "pull " + number + " is " + (now() - atMs) + " ms past its deadline";
    }

    String stop() {
        free(Set.of());
        for (Process broker : brokers) broker.destroy();
        if (!until(() -> slots.values().stream().noneMatch(slot -> slot.peer.isOpen), WITHIN_MS)) {
            throw new NotFollowed("the broker does not stop");
        }
        return "the broker stops";
    }

    void refuseReply(int number) {
        Slot slot = slots.get(number);
        synchronized (lock) {
            if (slot.peer.headers.containsKey(slot.opaque)) {
                throw new Otherwise("pull " + number + " is answered: " + slot.peer.headers.get(slot.opaque));
            }
        }
    }

    String answered(int number, String word) {
        Slot slot = slots.get(number);
        if (!until(() -> slot.peer.headers.containsKey(slot.opaque), WITHIN_MS)) {
            throw new NotFollowed("pull " + number + " is not answered");
        }
        int code;
        long cameMs;
        synchronized (lock) {
            code = Integer.parseInt(field(slot.peer.headers.get(slot.opaque), "code"));
            cameMs = slot.peer.cameMs.get(slot.opaque);
        }
        if (!word.isEmpty() && (code == SUCCESS) != word.equals("found")) {
            throw new Otherwise("pull " + number + " is answered with code " + code + ", but the specification expects " + word);
        }
        String since = code == SUCCESS && shownMs >= 0 ? ", " + (cameMs - shownMs) + " ms after its message became visible" : "";
        return "pull " + number + " is answered with code " + code + ", " + (cameMs - slot.sentMs) + " ms after it was sent" + since;
    }

    String untouched(int number) {
        int opaque = slots.get(number).opaque;
        if (seenSince(endedAt, each -> each.request == opaque)) throw new Otherwise("a thread comes to pull " + number);
        return "no thread comes to pull " + number;
    }

    String look(int number) {
        int opaque = slots.get(number).opaque;
        if (!until(() -> seenSince(endedAt, each -> each.request == opaque && each.gate.equals("each")), WITHIN_MS)) {
            throw new Otherwise("no thread looks at pull " + number + " again");
        }
        return "a walk looks at pull " + number;
    }

    boolean visits(int queue, int since) {
        int wanted = queueIds.get(queue);
        return seenSince(since, each -> each.gate.equals("queue") && each.topic.equals(topic) && each.queue == wanted);
    }

    String visit(int queue) {
        if (!until(() -> visits(queue, endedAt), WITHIN_MS)) throw new Otherwise("the scan does not reach queue " + queue + " again");
        return "the scan comes to queue " + queue;
    }

    String unvisited(int queue) {
        if (visits(queue, roundAt)) throw new Otherwise("the round reached queue " + queue);
        return "the round did not come to queue " + queue;
    }

    /** Number the specification's queues in the order in which the broker's scan visits them. */
    void numberQueues(List<String> steps) {
        Set<Integer> order = new LinkedHashSet<>();
        for (String line : steps) {
            Matcher scanned = Pattern.compile("until .*gates=queue.* queue=(\\d+)").matcher(line);
            if (scanned.find()) order.add(Integer.parseInt(scanned.group(1)));
        }
        order.addAll(queueIds.keySet());
        Set<Integer> came = new LinkedHashSet<>();
        synchronized (lock) {
            for (Arrival each : seen) if (each.gate.equals("queue") && each.topic.equals(topic)) came.add(each.queue);
            if (came.size() == order.size()) {
                var ids = came.iterator();
                for (int number : order) queueIds.put(number, ids.next());
            }
        }
    }

    // -- frames -------------------------------------------------------------------------------------------------------

    Peer connect(int port) throws IOException {
        Peer peer = new Peer();
        peer.socket = new Socket(InetAddress.getLoopbackAddress(), port);
        peer.socket.setTcpNoDelay(true);
        Thread reader = new Thread(() -> read(peer));
        reader.setDaemon(true);
        reader.start();
        return peer;
    }

    void read(Peer peer) {
        try {
            DataInputStream input = new DataInputStream(peer.socket.getInputStream());
            while (true) {
                int size = input.readInt();
                byte[] frame = new byte[size];
                input.readFully(frame);
                int header = ByteBuffer.wrap(frame).getInt() & 0xFFFFFF;
                String text = new String(frame, 4, header, StandardCharsets.UTF_8);
                synchronized (lock) {
                    int opaque = Integer.parseInt(field(text, "opaque"));
                    peer.headers.put(opaque, text);
                    peer.cameMs.put(opaque, now());
                    lock.notifyAll();
                }
            }
        } catch (IOException ended) {
            synchronized (lock) {
                peer.isOpen = false;
                lock.notifyAll();
            }
        }
    }

    /** The value of a field in a JSON header: a number, or a text that contains no quotes. */
    static String field(String header, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\\s*\"?(-?[^\",}]*)").matcher(header);
        return found.find() ? found.group(1) : "";
    }

    Peer admin(int port) throws IOException {
        if (!admins.containsKey(port)) admins.put(port, connect(port));
        return admins.get(port);
    }

    String asked(int code, Map<String, String> fields, byte[] body, int port) throws IOException {
        Peer admin = admin(port);
        int opaque = opaques++;
        request(admin, code, opaque, fields, body);
        if (!until(() -> admin.headers.containsKey(opaque), WITHIN_MS)) throw new NotFollowed("no answer to code " + code);
        synchronized (lock) {
            String header = admin.headers.get(opaque);
            if (!field(header, "code").equals("0")) throw new NotFollowed("code " + code + " is answered: " + header);
            return header;
        }
    }

    static void request(Peer peer, int code, int opaque, Map<String, String> fields, byte[] body) throws IOException {
        StringBuilder header = new StringBuilder("{\"code\":" + code + ",\"language\":\"JAVA\",\"version\":401,\"opaque\":" + opaque
            + ",\"flag\":0,\"serializeTypeCurrentRPC\":\"JSON\",\"extFields\":{");
        String comma = "";
        for (var each : fields.entrySet()) {
            header.append(comma).append('"').append(each.getKey()).append("\":\"").append(each.getValue()).append('"');
            comma = ",";
        }
        byte[] text = header.append("}}").toString().getBytes(StandardCharsets.UTF_8);
        ByteBuffer frame = ByteBuffer.allocate(8 + text.length + body.length);
        frame.putInt(4 + text.length + body.length).putInt(text.length).put(text).put(body);
        OutputStream output = peer.socket.getOutputStream();
        output.write(frame.array());
        output.flush();
    }
}
