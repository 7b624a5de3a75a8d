import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * Runs the law of broker long polling from its JANI file: explores the law, and follows a program's steps for a unit
 * test. What is in the file is told in docs/export.md. Leaves out every part of JANI that is not there.
 *
 * <p>Equal expressions are one node, so that a guard which many others ask for is evaluated once in a state.
 */
public final class Law {
    /** That of the files which this program reads. */
    public static final String VERSION = "1";

    private static final int NO_END = Integer.MAX_VALUE;
    private static final List<String> SIGNS = List.of("∧", "∨", "=", "≠", "<", "≤", "+", "-");

    /** A variable's range, both ends of which belong to it, and its first value. */
    private record Variable(String name, int lower, int upper, int first) {}

    private record Part(int node, String text) {}

    private record Assignment(int place, int node) {}

    private record Edge(String label, int guard, List<Part> parts, List<Assignment> effects) {}

    /** {@code wanted}: whether a state that decides it must be reached, or must not. */
    private record Property(String name, int decisive, boolean wanted) {}

    /** {@code first} of a variable is its place, of a constant its value; of all others these are nodes. */
    private record Node(char op, int first, int second, int third) {}

    /** What an exploration counts, and for each property whether it is as it must be. */
    public record Found(int states, long transitions, int depth, double seconds, Map<String, Boolean> verdicts) {}

    private final List<Variable> variables = new ArrayList<>();
    private final Map<String, Integer> places = new HashMap<>();
    private final Map<String, Integer> constants = new HashMap<>();
    private final List<Node> nodes = new ArrayList<>();
    private final Map<Node, Integer> known = new HashMap<>();
    private final List<Boolean> shared = new ArrayList<>();
    private final List<Edge> edges = new ArrayList<>();
    private final List<Property> properties = new ArrayList<>();

    /** Reads a file that {@code longpoll export --to jani} wrote. */
    public Law(Path path) throws IOException {
        var found = object(Json.read(Files.readString(path)));
        var version = object(found.get("metadata")).get("version");
        if (!VERSION.equals(version)) {
            throw new IllegalArgumentException(path + " has version " + version + ", and this program reads " + VERSION);
        }
        for (var each : objects(found.get("constants"))) {
            constants.put((String) each.get("name"), (Integer) each.get("value"));
        }
        objects(found.get("variables")).forEach(this::declare);
        for (var each : objects(objects(found.get("automata")).get(0).get("edges"))) {
            edges.add(edge(each));
        }
        for (var each : objects(found.get("properties"))) {
            properties.add(property((String) each.get("name"), object(object(each.get("expression")).get("values"))));
        }
    }

    private void declare(Map<String, Object> found) {
        var name = (String) found.get("name");
        int lower = 0;
        int upper = 1;
        if (found.get("type") instanceof Map<?, ?> ends) {
            lower = (Integer) ends.get("lower-bound");
            upper = ends.get("upper-bound") instanceof Integer end ? end : NO_END;
        }
        int first = nodes.get(add(found.get("initial-value"))).first;
        places.put(name, variables.size());
        variables.add(new Variable(name, lower, upper, first));
    }

    private Edge edge(Map<String, Object> found) {
        var guard = object(found.get("guard")).get("exp");
        var parts = joined(guard, "∧").stream().map(part -> new Part(add(part), text(part))).toList();
        var effects = new ArrayList<Assignment>();
        for (var each : objects(objects(found.get("destinations")).get(0).get("assignments"))) {
            effects.add(new Assignment(place((String) each.get("ref")), add(each.get("value"))));
        }
        return new Edge((String) found.get("action"), add(guard), parts, effects);
    }

    /** Reads "the greatest probability of reaching a state is 0", or its negation. */
    private Property property(String name, Map<String, Object> asked) {
        boolean wanted = asked.get("op").equals("¬");
        var never = wanted ? object(asked.get("exp")) : asked;
        var reached = object(never.get("left"));
        if (!never.get("op").equals("≤") || !never.get("right").equals(0) || !reached.get("op").equals("Pmax")) {
            throw new IllegalArgumentException("property " + name + " asks something else");
        }
        return new Property(name, add(object(reached.get("exp")).get("exp")), wanted);
    }

    private int place(String name) {
        if (!places.containsKey(name)) {
            throw new IllegalArgumentException("no variable " + name);
        }
        return places.get(name);
    }

    /** Makes an expression's node, or finds it if there is one that says the same. */
    private int add(Object expression) {
        var node = node(expression);
        var place = known.get(node);
        if (place != null) {
            shared.set(place, node.op != 'c' && node.op != 'v');
            return place;
        }
        known.put(node, nodes.size());
        nodes.add(node);
        shared.add(false);
        return nodes.size() - 1;
    }

    private Node node(Object expression) {
        if (expression instanceof Boolean value) {
            return new Node('c', value ? 1 : 0, 0, 0);
        }
        if (expression instanceof Integer value) {
            return new Node('c', value, 0, 0);
        }
        if (expression instanceof String name) {
            return constants.containsKey(name) ? new Node('c', constants.get(name), 0, 0) : new Node('v', place(name), 0, 0);
        }
        var found = object(expression);
        var op = (String) found.get("op");
        if (op.equals("¬")) {
            return new Node('¬', add(found.get("exp")), 0, 0);
        }
        if (op.equals("ite")) {
            return new Node('?', add(found.get("if")), add(found.get("then")), add(found.get("else")));
        }
        if (!SIGNS.contains(op)) {
            throw new IllegalArgumentException("unknown operator " + op);
        }
        return new Node(op.charAt(0), add(found.get("left")), add(found.get("right")), 0);
    }

    /** For one unit test of one hold table. */
    public Oracle oracle() {
        return new Oracle();
    }

    /** Finds every state, breadth first. */
    public Found explore() {
        long began = System.nanoTime();
        var world = new World();
        var states = new States();
        var next = world.state.clone();
        var reached = new boolean[properties.size()];
        states.add(world.state);
        long transitions = 0;
        int depth = 0;
        for (int index = 0, end = 1; index < states.count; index++) {
            if (index == end) {
                end = states.count;
                depth++;
            }
            states.read(index, world.state);
            world.now++;
            for (int each = 0; each < reached.length; each++) {
                reached[each] = reached[each] || world.value(properties.get(each).decisive) != 0;
            }
            for (var edge : edges) {
                if (world.value(edge.guard) != 0) {
                    transitions++;
                    world.after(edge, next);
                    states.add(next);
                }
            }
        }
        var verdicts = new TreeMap<String, Boolean>();
        for (int each = 0; each < reached.length; each++) {
            verdicts.put(properties.get(each).name, reached[each] == properties.get(each).wanted);
        }
        return new Found(states.count, transitions, depth, (System.nanoTime() - began) / 1e9, verdicts);
    }

    /** Evaluates nodes in one state; what is shared is remembered until the state is another. */
    private final class World {
        final int[] state = variables.stream().mapToInt(Variable::first).toArray();
        int now = 1;
        private final Node[] all = nodes.toArray(Node[]::new);
        private final boolean[] isShared = new boolean[all.length];
        private final int[] stamps = new int[all.length];
        private final int[] values = new int[all.length];

        World() {
            for (int place = 0; place < all.length; place++) {
                isShared[place] = shared.get(place);
            }
        }

        int value(int place) {
            if (!isShared[place]) {
                return compute(all[place]);
            }
            if (stamps[place] != now) {
                values[place] = compute(all[place]);
                stamps[place] = now;
            }
            return values[place];
        }

        private int compute(Node node) {
            switch (node.op) {
                case 'c': return node.first;
                case 'v': return state[node.first];
                case '∧': return value(node.first) == 0 ? 0 : value(node.second);
                case '∨': return value(node.first) != 0 ? 1 : value(node.second);
                case '¬': return 1 - value(node.first);
                case '?': return value(node.first) != 0 ? value(node.second) : value(node.third);
                case '=': return value(node.first) == value(node.second) ? 1 : 0;
                case '≠': return value(node.first) != value(node.second) ? 1 : 0;
                case '<': return value(node.first) < value(node.second) ? 1 : 0;
                case '≤': return value(node.first) <= value(node.second) ? 1 : 0;
                case '+': return value(node.first) + value(node.second);
                default: return value(node.first) - value(node.second);
            }
        }

        /** Writes the state that an edge leads to; raises where a variable leaves its range. */
        void after(Edge edge, int[] into) {
            System.arraycopy(state, 0, into, 0, state.length);
            for (var each : edge.effects) {
                int value = value(each.node);
                var kept = variables.get(each.place);
                if (value < kept.lower || value > kept.upper) {
                    throw new IllegalStateException(
                            edge.label + " makes " + kept.name + " " + value + ", which is not in its range");
                }
                into[each.place] = value;
            }
        }
    }

    /** All states that were found, in the order in which they were, each packed in two words. */
    private final class States {
        int count;
        private final int[] shifts = new int[variables.size()];
        private final long[] masks = new long[variables.size()];
        private long[] words = new long[1 << 16];
        private int[] table = new int[1 << 16]; // number of a state, plus 1; half of it is empty

        States() {
            int used = 0;
            for (int place = 0; place < shifts.length; place++) {
                var each = variables.get(place);
                if (each.upper == NO_END) {
                    throw new IllegalStateException(each.name + " has no end: such a law is only followed");
                }
                int width = 32 - Integer.numberOfLeadingZeros(each.upper - each.lower);
                used = used / 64 == (used + width - 1) / 64 ? used : 64; // none lies across both words
                shifts[place] = used;
                masks[place] = (1L << width) - 1;
                used += width;
            }
            if (used > 128) {
                throw new IllegalStateException("a state needs more than 128 bits");
            }
        }

        void add(int[] state) {
            long low = 0;
            long high = 0;
            for (int place = 0; place < shifts.length; place++) {
                long bits = (long) (state[place] - variables.get(place).lower) << shifts[place]; // Java shifts by the remainder of 64
                if (shifts[place] < 64) {
                    low |= bits;
                } else {
                    high |= bits;
                }
            }
            int slot = find(low, high);
            if (table[slot] != 0) {
                return;
            }
            words[2 * count] = low;
            words[2 * count + 1] = high;
            table[slot] = ++count;
            if (2 * count == table.length) {
                grow();
            }
        }

        private int find(long low, long high) {
            long hash = (low ^ high * 0x9e3779b97f4a7c15L) * 0xbf58476d1ce4e5b9L;
            int slot = (int) (hash ^ hash >>> 32) & table.length - 1;
            while (table[slot] != 0 && (words[2 * table[slot] - 2] != low || words[2 * table[slot] - 1] != high)) {
                slot = slot + 1 & table.length - 1;
            }
            return slot;
        }

        private void grow() {
            table = new int[2 * table.length];
            words = Arrays.copyOf(words, table.length);
            for (int index = 0; index < count; index++) {
                table[find(words[2 * index], words[2 * index + 1])] = index + 1;
            }
        }

        void read(int index, int[] state) {
            for (int place = 0; place < shifts.length; place++) {
                long word = words[2 * index + shifts[place] / 64];
                state[place] = (int) (word >>> shifts[place] & masks[place]) + variables.get(place).lower;
            }
        }
    }

    /** Follows one run, step by step, from the law's first state. */
    public final class Oracle {
        private final World world = new World();

        /**
         * Takes a step of the law, such as {@code did("hold", 0)}. Gives the parts of the step's guard that are false:
         * none if the step is legal; else the run stays where it is.
         */
        public List<String> did(String name, Object... actors) {
            var named = Arrays.stream(actors).map(String::valueOf).collect(Collectors.joining(","));
            var label = actors.length == 0 ? name : name + "(" + named + ")";
            var edge = edges.stream().filter(each -> each.label.equals(label)).findFirst();
            if (edge.isEmpty()) {
                throw new IllegalArgumentException("the law has no action " + label);
            }
            if (world.value(edge.get().guard) == 0) {
                return edge.get().parts.stream().filter(part -> world.value(part.node) == 0).map(Part::text).toList();
            }
            var next = world.state.clone();
            world.after(edge.get(), next);
            System.arraycopy(next, 0, world.state, 0, next.length);
            world.now++;
            return List.of();
        }

        /** What can come next. */
        public List<String> may() {
            return edges.stream().filter(each -> world.value(each.guard) != 0).map(Edge::label).toList();
        }

        /** The properties of what must never be that the state breaks. */
        public List<String> broken() {
            var always = properties.stream().filter(each -> !each.wanted);
            return always.filter(each -> world.value(each.decisive) != 0).map(Property::name).toList();
        }
    }

    /** What an operator of two arguments joins, however it is nested. */
    private static List<Object> joined(Object expression, String op) {
        if (!(expression instanceof Map<?, ?> found) || !found.get("op").equals(op)) {
            return List.of(expression);
        }
        var parts = new ArrayList<>(joined(found.get("left"), op));
        parts.addAll(joined(found.get("right"), op));
        return parts;
    }

    /** An expression with the file's operators. */
    private static String text(Object expression) {
        var written = nested(expression);
        return written.startsWith("(") ? written.substring(1, written.length() - 1) : written;
    }

    private static String nested(Object expression) {
        if (!(expression instanceof Map<?, ?> found)) {
            return String.valueOf(expression);
        }
        var op = (String) found.get("op");
        if (op.equals("∧") || op.equals("∨")) {
            var parts = joined(expression, op).stream().map(Law::nested);
            return "(" + parts.collect(Collectors.joining(" " + op + " ")) + ")";
        }
        if (op.equals("¬")) {
            return "¬" + nested(found.get("exp"));
        }
        if (op.equals("ite")) {
            var branches = " then " + nested(found.get("then")) + " else " + nested(found.get("else"));
            return "(if " + nested(found.get("if")) + branches + ")";
        }
        return "(" + nested(found.get("left")) + " " + op + " " + nested(found.get("right")) + ")";
    }

    @SuppressWarnings("unchecked") // what is no object fails where it is read
    private static Map<String, Object> object(Object found) {
        return (Map<String, Object>) found;
    }

    private static List<Map<String, Object>> objects(Object found) {
        return ((List<?>) found).stream().map(Law::object).toList();
    }

    /** Explores a law ({@code FILE}), or follows steps through it ({@code FILE LABEL...}), and prints JSON lines. */
    public static void main(String[] words) {
        try {
            var law = new Law(Path.of(words[0]));
            if (words.length == 1) {
                var found = law.explore();
                var verdicts = found.verdicts.entrySet().stream().map(each -> quoted(each.getKey()) + ": " + each.getValue());
                System.out.printf(
                        "{\"states\": %d, \"transitions\": %d, \"depth\": %d, \"seconds\": %s, \"verdicts\": {%s}}%n",
                        found.states, found.transitions, found.depth, found.seconds, verdicts.collect(Collectors.joining(", ")));
            }
            var oracle = law.oracle();
            for (var step : Arrays.asList(words).subList(1, words.length)) {
                System.out.println("{\"step\": " + quoted(step) + ", \"false\": " + list(oracle.did(step))
                        + ", \"may\": " + list(oracle.may()) + ", \"broken\": " + list(oracle.broken()) + "}");
            }
        } catch (IOException | RuntimeException error) {
            System.err.println(error.getMessage());
            System.exit(2);
        }
    }

    private static String list(List<String> texts) {
        return texts.stream().map(Law::quoted).collect(Collectors.joining(", ", "[", "]"));
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
