// Plays conformance vectors to a broker, with nothing but Java's own library.
//
//   java Play.java FILE BROKER NAME_SERVER BROKER_NAME CLUSTER HAS [ONLY]
//
// HAS is what the broker has, ONLY the ids that are played, each with commas between them. The page beside the vectors
// tells what steps and patterns mean. A line for each vector; the exit code is 0 when none failed. What differs from a
// vector is thrown, and so are bytes that cannot be read.

import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.*;
import java.util.zip.CRC32;

import static java.nio.charset.StandardCharsets.UTF_8;

public class Play {
    static final int BESIDE = 16, AFTER_MS = 250;
    static final String[] LANGUAGES = "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST".split(" ");
    static final Pattern VARIABLE = Pattern.compile("\\$\\{(\\w+)([+-]\\d+)?}");
    static final HexFormat HEX = HexFormat.of();
    static String[] words;

    /** Reads JSON, with whole numbers as names without quotes, into maps, lists, texts, numbers' texts and null. */
    static class Json {
        private final String text;
        private int at;

        Json(String text) { this.text = text; }

        static Object read(String text) {
            Json json = new Json(text);
            Object value = json.value();
            if (json.peek() != 0) throw new IllegalArgumentException("more than JSON at " + json.at);
            return value;
        }

        private char peek() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
            return at < text.length() ? text.charAt(at) : 0;
        }

        private boolean skip(char wanted) {
            boolean is = peek() == wanted;
            if (is) at++;
            return is;
        }

        private Object value() {
            if (skip('{')) {
                Map<String, Object> found = new TreeMap<>();
                for (; !skip('}'); skip(',')) {
                    String name = String.valueOf(value());
                    if (!skip(':')) throw new IllegalArgumentException("no colon at " + at);
                    found.put(name, value());
                }
                return found;
            } else if (skip('[')) {
                List<Object> found = new ArrayList<>();
                for (; !skip(']'); skip(',')) found.add(value());
                return found;
            } else if (skip('"')) return string();
            int begin = at;
            while (at < text.length() && "{}[],:\" \n".indexOf(text.charAt(at)) < 0) at++;
            String word = text.substring(begin, at);
            if (word.equals("null")) return null;
            if (!word.matches("true|false|-?\\d+([.eE+-]\\d+)*")) throw new IllegalArgumentException("no JSON at " + at);
            return new Word(word);
        }

        private String string() {
            StringBuilder found = new StringBuilder();
            for (char c; (c = text.charAt(at++)) != '"'; ) {
                if (c == '\\') {
                    c = text.charAt(at++);
                    int plain = "bfnrt".indexOf(c);
                    if (plain >= 0) c = "\b\f\n\r\t".charAt(plain);
                    else if (c == 'u') c = (char) Integer.parseInt(text.substring(at, at += 4), 16);
                }
                found.append(c);
            }
            return found.toString();
        }
    }

    /** A number, true or false. */
    record Word(String text) {
        @Override public String toString() { return text; }
    }

    // -- what a broker sends

    record Command(int code, int flag, int opaque, String language, String remark, Map<String, Object> extFields,
                   byte[] body, long at) { }

    static byte[] take(ByteBuffer from, int size) {
        byte[] taken = new byte[size];
        from.get(taken);
        return taken;
    }

    static String text(ByteBuffer from, int size) { return new String(take(from, size), UTF_8); }

    @SuppressWarnings("unchecked")
    static Map<String, Object> map(Object value) { return value == null ? Map.of() : (Map<String, Object>) value; }

    static int number(Map<String, Object> of, String name, int otherwise) {
        return of.containsKey(name) ? Integer.parseInt(((Word) of.get(name)).text) : otherwise;
    }

    static Command decode(byte[] frame) {
        ByteBuffer in = ByteBuffer.wrap(frame);
        int mark = in.getInt();
        byte[] raw = take(in, mark & 0xFFFFFF), body = take(in, in.remaining());
        if (mark >>> 24 == 0) {
            Map<String, Object> head = map(Json.read(new String(raw, UTF_8)));
            for (Object each : map(head.get("extFields")).values()) if (!(each instanceof String)) throw new ClassCastException();
            return new Command(number(head, "code", 0), number(head, "flag", 0), number(head, "opaque", 0),
                (String) head.get("language"), (String) head.get("remark"), map(head.get("extFields")), body, System.nanoTime());
        }
        ByteBuffer head = ByteBuffer.wrap(raw);
        int code = head.getShort();
        String language = LANGUAGES[head.get()];
        head.getShort();
        int opaque = head.getInt(), flag = head.getInt();
        String remark = text(head, head.getInt());
        Map<String, Object> fields = new TreeMap<>();
        for (head.getInt(); head.hasRemaining(); ) fields.put(text(head, head.getShort()), text(head, head.getInt()));
        return new Command(code, flag, opaque, language, remark, fields, body, System.nanoTime());
    }

    static String host(ByteBuffer in, boolean isV6) throws IOException {
        return InetAddress.getByAddress(take(in, isV6 ? 16 : 4)).getHostAddress() + ":" + in.getInt();
    }

    static Map<String, Object> readRecord(ByteBuffer in) throws IOException {
        Map<String, Object> one = new TreeMap<>();
        int begin = in.position(), size = in.getInt(), magic = in.getInt(), crc = in.getInt();
        one.putAll(Map.of("magic", "%08X".formatted(magic), "bodyCRC", crc, "queueId", in.getInt(), "flag", in.getInt()));
        one.put("queueOffset", in.getLong());
        one.put("physicalOffset", in.getLong());
        int sysFlag = in.getInt();
        one.putAll(Map.of("sysFlag", sysFlag, "bornTimestamp", in.getLong(), "bornHost", host(in, (sysFlag & 0x10) != 0)));
        one.put("storeTimestamp", in.getLong());
        one.put("storeHost", host(in, (sysFlag & 0x20) != 0));
        one.put("reconsumeTimes", in.getInt());
        one.put("preparedTransactionOffset", in.getLong());
        byte[] body = take(in, in.getInt());
        CRC32 sum = new CRC32();
        sum.update(body);
        one.putAll(Map.of("body", new String(body, UTF_8), "bodyHex", HEX.formatHex(body), "bodyLength", body.length));
        one.put("bodyCRCok", (sum.getValue() & 0x7FFFFFFF) == crc);
        // From 5.0 a topic's length may take two bytes.
        one.put("topic", text(in, magic == 0xDAA320AB ? in.getShort() : in.get()));
        Map<String, Object> properties = new TreeMap<>();
        for (String part : text(in, in.getShort()).split("\2")) {
            String[] sides = part.split("\1", 2);
            if (sides.length == 2) properties.put(sides[0], sides[1]);
        }
        one.put("properties", properties);
        if (in.position() - begin != size) throw new IOException("a record of another size");
        return one;
    }

    /** A value and what is in it, by their places; lists that need not be `inOrder` in that of what is in them. */
    static Map<String, String> put(Map<String, String> found, String place, Object value, boolean inOrder) {
        if (value instanceof List<?> list) {
            Map<String, Object> values = new LinkedHashMap<>();
            List<Object> all = new ArrayList<>(list);
            if (!inOrder) all.sort(Comparator.comparing(each -> put(new TreeMap<>(), "", each, false).values().toString()));
            for (Object each : all) values.put(String.valueOf(values.size()), each);
            value = values;
        }
        if (value instanceof Map<?, ?> map) {
            found.put(place + ".#", String.valueOf(map.size()));
            map.forEach((name, each) -> put(found, place + "." + name, each, false));
        } else found.put(place, String.valueOf(value));
        return found;
    }

    /** What an answer is, by its places; its body as records or JSON where it is. */
    static Map<String, String> shown(Command command) {
        Map<String, String> found = new TreeMap<>();
        put(found, "code", command.code, false);
        put(found, "flag", command.flag, false);
        put(found, "language", command.language, false);
        put(found, "hasRemark", command.remark != null && !command.remark.isEmpty(), false);
        put(found, "extFields", command.extFields, false);
        if (command.extFields.get("msgId") instanceof String id && id.matches(".*[0-9A-Fa-f]{16}")) {
            found.put("place", String.valueOf(Long.parseUnsignedLong(id.substring(id.length() - 16), 16)));
        }
        if (command.body.length == 0) {
            found.put("empty", "true");
            return found;
        }
        try {
            List<Object> records = new ArrayList<>();
            for (ByteBuffer in = ByteBuffer.wrap(command.body); in.hasRemaining(); ) records.add(readRecord(in));
            put(found, "records", records, true);
        } catch (IOException | RuntimeException noRecords) {
            found.put("hex", HEX.formatHex(command.body));
            try {
                put(found, "json", Json.read(new String(command.body, UTF_8)), false);
            } catch (RuntimeException | StackOverflowError noJson) {
                return found;
            }
        }
        return found;
    }

    static void fit(String of, Map<String, Object> pattern, Map<String, String> found) {
        pattern.forEach((place, wanted) -> {
            String text = found.get(place);
            boolean isAddress = wanted.equals("<address>") && text != null && text.matches("\\d{1,3}(\\.\\d{1,3}){3}:\\d+");
            String id = "([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})";
            boolean areIds = text != null && text.matches(id + "(," + id + ")*") && wanted.equals("<ids " + text.split(",").length + ">");
            if (text == null || !(text.equals(wanted) || wanted.equals("<any>") || isAddress || areIds)) {
                throw new IllegalStateException(of + ", " + place + ": expected " + wanted + ", got " + text);
            }
        });
    }

    // -- playing

    /** A connection. What came waits in the inbox until the playing looks at it; the last is null. */
    static class Line {
        final BlockingQueue<Optional<Command>> inbox = new LinkedBlockingQueue<>();
        final Set<Integer> waited = new HashSet<>();
        final Map<Integer, Command> answers = new HashMap<>();
        final List<Command> pushes = new ArrayList<>();
        final Socket socket = new Socket();
        boolean isAny, isClosed;

        Line(String address) throws IOException {
            int cut = address.lastIndexOf(':');
            socket.connect(new InetSocketAddress(address.substring(0, cut), Integer.parseInt(address.substring(cut + 1))), 5000);
            socket.setTcpNoDelay(true);
            Thread reader = new Thread(this::read);
            reader.setDaemon(true);
            reader.start();
        }

        private void read() {
            try (DataInputStream in = new DataInputStream(socket.getInputStream())) {
                while (true) inbox.add(Optional.of(decode(in.readNBytes(in.readInt()))));
            } catch (IOException | RuntimeException end) {
                inbox.add(Optional.empty());
            }
        }

        /** The answer to a request; null when the connection is closed or the time over. */
        Command await(int opaque, long withinMs) throws InterruptedException {
            long end = System.nanoTime() + withinMs * 1_000_000;
            while (!answers.containsKey(opaque) && !isClosed) {
                Optional<Command> came = inbox.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                if (came == null) return null;
                isClosed = came.isEmpty();
                came.ifPresent(this::keep);
            }
            return answers.get(opaque);
        }

        /** Say that nothing more is sent, and look at what still comes until the broker closes. */
        void awaitEnd() throws InterruptedException {
            try {
                socket.shutdownOutput();
            } catch (IOException closed) {
                inbox.add(Optional.empty());
            }
            await(Integer.MIN_VALUE, AFTER_MS);
        }

        private void keep(Command command) {
            if ((command.flag & 1) == 0) pushes.add(command);
            else if (!waited.remove(command.opaque) && (!isAny || answers.containsKey(command.opaque))) {
                throw new IllegalStateException("an answer to " + command.opaque + ", which nobody asked or was answered");
            } else answers.put(command.opaque, command);
        }
    }

    record Asked(Line line, int opaque, long at) { }

    final Map<String, String> names = new HashMap<>(Map.of("brokerName", words[3], "cluster", words[4]));
    final Map<String, Line> lines = new TreeMap<>();
    final Map<String, Asked> asked = new HashMap<>();

    /** A value with its variables. */
    Object filled(Object value) {
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> found = new TreeMap<>();
            map.forEach((name, each) -> found.put((String) filled(name), filled(each)));
            return found;
        }
        if (value instanceof List<?> list) return list.stream().map(this::filled).toList();
        return value instanceof String text ? VARIABLE.matcher(text).replaceAll(found -> {
            String known = names.get(found.group(1));
            return found.group(2) == null ? known : String.valueOf(Long.parseLong(known) + Long.parseLong(found.group(2)));
        }) : value;
    }

    static byte[] content(List<?> pieces) {
        ByteArrayOutputStream whole = new ByteArrayOutputStream();
        for (Object each : pieces) {
            Map<String, Object> piece = map(each);
            for (int times = number(piece, "times", 1); times > 0; times--) {
                whole.writeBytes(((String) piece.getOrDefault("text", "")).getBytes(UTF_8));
                whole.writeBytes(HEX.parseHex((String) piece.getOrDefault("hex", "")));
            }
        }
        return whole.toByteArray();
    }

    Asked send(Map<String, Object> step) throws IOException {
        String name = (String) step.get("conn");
        if (!lines.containsKey(name)) lines.put(name, new Line(name.startsWith("ns") ? words[2] : words[1]));
        Line line = lines.get(name);
        int opaque = number(step, "opaque", 0);
        line.waited.add(opaque);
        line.answers.remove(opaque);
        line.isAny |= step.containsKey("raw");
        byte[] frame = HEX.parseHex((String) step.getOrDefault("raw", ""));
        if (step.containsKey("header")) {
            byte[] header = content(List.of(step.get("header"))), body = content((List<?>) step.get("body"));
            ByteBuffer whole = ByteBuffer.allocate(8 + header.length + body.length).putInt(4 + header.length + body.length);
            frame = whole.putInt(number(map(step.get("header")), "kind", 0) << 24 | header.length).put(header).put(body).array();
        }
        long at = System.nanoTime();
        try {
            line.socket.getOutputStream().write(frame);
        } catch (IOException closed) {
            line.inbox.add(Optional.empty());
        }
        return new Asked(line, opaque, at);
    }

    void answer(String name, Map<String, Object> step) throws InterruptedException {
        Asked request = asked.get(name);
        Command command = request.line.await(request.opaque, number(step, "withinMs", 0));
        Map<String, String> found = Map.of(request.line.isClosed ? "closed" : "silence", "true");
        if (command != null) {
            found = shown(command);
            long heldMs = (command.at - request.at) / 1_000_000;
            if (heldMs < number(step, "notBeforeMs", 0) - 1 || heldMs > number(step, "notAfterMs", Integer.MAX_VALUE)) {
                throw new IllegalStateException("%s: expected after %s to %s ms, came after %d".formatted(
                    name, step.get("notBeforeMs"), step.get("notAfterMs"), heldMs));
            }
        }
        fit(name, map(step.get("expect")), found);
        for (var each : map(step.get("save")).entrySet()) names.put(each.getKey(), found.get(each.getValue()));
    }

    void until(Map<String, Object> step) throws IOException, InterruptedException {
        long end = System.currentTimeMillis() + number(step, "limitMs", 0);
        for (long there = -1; there < number(step, "until", 0); Thread.sleep(10)) {
            Asked request = send(step);
            Command command = request.line.await(request.opaque, end - System.currentTimeMillis());
            if (command == null) throw new IllegalStateException("the queue does not come to " + step.get("until"));
            there = Long.parseLong((String) command.extFields.getOrDefault(step.get("field"), "-1"));
        }
    }

    /** What the broker sent of its own, on every connection, until so many milliseconds from now. */
    Map<String, String> pushes(int afterMs) throws InterruptedException {
        Thread.sleep(afterMs);
        Map<String, String> found = new TreeMap<>();
        int count = 0;
        for (var each : lines.entrySet()) {
            while (!each.getValue().inbox.isEmpty() && !each.getValue().isClosed) each.getValue().await(-1, 0);
            for (Command push : each.getValue().pushes) {
                var shown = Map.of("conn", each.getKey(), "code", push.code, "flag", push.flag, "extFields", push.extFields);
                put(found, String.valueOf(count++), shown, false);
            }
        }
        found.put("#", String.valueOf(count));
        return found;
    }

    void play(Map<String, Object> step) throws IOException, InterruptedException {
        Thread.sleep(number(step, "sleepMs", 0));
        if (step.get("ask") instanceof String name) asked.put(name, send(step));
        else if (step.get("answer") instanceof String name) answer(name, step);
        else if (step.get("after") instanceof String name) {
            Thread.sleep(Math.max(0, number(step, "ms", 0) - (System.nanoTime() - asked.get(name).at) / 1_000_000));
        } else if (step.get("close") instanceof String name) lines.remove(name).socket.close();
        else if (step.containsKey("until")) until(step);
        else if (step.containsKey("pushes")) fit("pushes", map(step.get("pushes")), pushes(number(step, "afterMs", 0)));
    }

    /** Play a vector; what differs first, or nothing. */
    static String play(String line) {
        Play play = new Play();
        play.names.put("run", "%6s".formatted(Long.toString(ThreadLocalRandom.current().nextLong(36L * 36 * 36 * 36 * 36 * 36), 36)).replace(' ', '0'));
        try {
            String named = line.replace("247b72756e7d", HEX.formatHex(play.names.get("run").getBytes(UTF_8)));
            for (Object step : (List<?>) map(Json.read(named)).get("steps")) play.play(map(play.filled(step)));
            for (Line each : play.lines.values()) each.awaitEnd();
            return "";
        } catch (Exception | StackOverflowError fault) {
            return String.valueOf(fault.getMessage());
        } finally {
            for (Line each : play.lines.values()) {
                try {
                    each.socket.close();
                } catch (IOException closed) {
                    continue;
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        words = arguments;
        Set<String> has = Set.of(words[5].split(",")), only = words.length > 6 ? Set.of(words[6].split(",")) : Set.of();
        AtomicInteger passed = new AtomicInteger(), failed = new AtomicInteger(), skipped = new AtomicInteger();
        ExecutorService players = Executors.newFixedThreadPool(BESIDE);
        for (String line : Files.readAllLines(Path.of(words[0]))) {
            Map<String, Object> vector = map(Json.read(line));
            String id = (String) vector.get("id");
            if (!only.isEmpty() && !only.contains(id)) continue;
            List<?> unfit = ((List<?>) vector.get("when")).stream()
                .filter(name -> has.contains(((String) name).replace("!", "")) == ((String) name).startsWith("!")).toList();
            if (!unfit.isEmpty()) {
                skipped.incrementAndGet();
                System.out.println("SKIPPED " + id + " the broker is not: " + unfit);
                continue;
            }
            players.execute(() -> {
                String said = play(line);
                (said.isEmpty() ? passed : failed).incrementAndGet();
                System.out.println(said.isEmpty() ? "PASS " + id : "FAIL " + id + " " + said);
            });
        }
        players.shutdown();
        players.awaitTermination(1, TimeUnit.HOURS);
        System.out.printf("%d passed, %d failed, %d skipped%n", passed.get(), failed.get(), skipped.get());
        System.exit(failed.get() > 0 || passed.get() == 0 ? 1 : 0);
    }
}
