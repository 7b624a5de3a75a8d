import java.nio.file.Path;
import java.util.List;

/** How a unit test of a hold table asks the law: LAW names a file of rocketmq-4.9. Any test framework will do. */
final class HoldTableTest {
    public static void main(String[] words) throws Exception {
        var law = new Law(Path.of(System.getenv("LAW")));
        aMessageBetweenReadAndInsertIsALostWakeup(law.oracle());
        aHoldOfWhatHasNotMissedIsRefused(law.oracle());
        System.out.println("2 tests passed");
    }

    private static void aMessageBetweenReadAndInsertIsALostWakeup(Law.Oracle oracle) {
        same(List.of(), oracle.did("next_pull", 0));
        same(List.of(), oracle.did("pull_read", 0));
        for (var step : List.of("append", "make_visible", "notify_start", "notify_end")) {
            same(List.of(), oracle.did(step));
        }
        same(List.of(), oracle.did("hold", 0));
        same(List.of("no_lost_wakeup", "woken_within"), oracle.broken());
    }

    private static void aHoldOfWhatHasNotMissedIsRefused(Law.Oracle oracle) {
        same(List.of("phase_0 = PHASE_MISSED"), oracle.did("hold", 0));
        same(List.of("append", "next_pull(0)", "next_pull(1)", "tick", "stop"), oracle.may());
        try {
            oracle.did("hold", 9);
        } catch (IllegalArgumentException expected) {
            return;
        }
        throw new AssertionError("hold(9) is there");
    }

    private static void same(List<String> expected, List<String> found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + " and found " + found);
        }
    }
}
