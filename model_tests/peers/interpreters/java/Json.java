import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON, as Java has no library for it: Map, List, String, Integer, Boolean, null. Numbers are whole. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object read(String text) {
        var json = new Json(text);
        var value = json.value();
        if (json.peek() != '\0') {
            throw json.wrong("nothing more");
        }
        return value;
    }

    private Object value() {
        switch (peek()) {
            case '{': return object();
            case '[': return list();
            case '"': return string();
            case 't': return word("true", true);
            case 'f': return word("false", false);
            case 'n': return word("null", null);
            default: return number();
        }
    }

    private Map<String, Object> object() {
        var found = new LinkedHashMap<String, Object>();
        for (at++; peek() != '}'; comma('}')) {
            peek();
            var key = string();
            if (peek() != ':') {
                throw wrong("a colon");
            }
            at++;
            found.put(key, value());
        }
        at++;
        return found;
    }

    private List<Object> list() {
        var found = new ArrayList<Object>();
        for (at++; peek() != ']'; comma(']')) {
            found.add(value());
        }
        at++;
        return found;
    }

    private void comma(char end) {
        if (peek() == ',') {
            at++;
        } else if (peek() != end) {
            throw wrong("a comma or " + end);
        }
    }

    private String string() {
        if (text.charAt(at) != '"') {
            throw wrong("a string");
        }
        var found = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            found.append(text.charAt(at) == '\\' ? escaped() : text.charAt(at));
        }
        at++;
        return found.toString();
    }

    private char escaped() {
        at++;
        switch (text.charAt(at)) {
            case 'n': return '\n';
            case 't': return '\t';
            case 'r': return '\r';
            case 'b': return '\b';
            case 'f': return '\f';
            case 'u':
                at += 4;
                return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
            default: return text.charAt(at);
        }
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong(word);
        }
        at += word.length();
        return value;
    }

    private Integer number() {
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return Integer.valueOf(text.substring(from, at));
    }

    /** The next character that is no space; a zero at the end. */
    private char peek() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : '\0';
    }

    private IllegalArgumentException wrong(String wanted) {
        return new IllegalArgumentException("no " + wanted + " at character " + at);
    }
}
