// What Java's own classes read of what another client has written, and what they write: one line each, among a log's.
//
// Arguments: message ids, or a compression, a colon and a body packed so (base64).
// Output: "ID milliseconds address process"; "BODY compression unpacked packed-again", bodies in base64.

import java.util.Base64;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.Compressor;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

public class Reads {
    public static void main(String[] args) throws Exception {
        for (String arg : args) {
            int colon = arg.indexOf(':');
            if (colon >= 0) {
                body(arg.substring(0, colon), Base64.getDecoder().decode(arg.substring(colon + 1)));
                continue;
            }
            System.out.printf("ID %d %s %d%n", MessageClientIDSetter.getNearlyTimeFromID(arg).getTime(),
                MessageClientIDSetter.getIPStrFromID(arg), MessageClientIDSetter.getPidFromID(arg));
        }
    }

    private static void body(String name, byte[] packed) throws Exception {
        Compressor compressor = CompressorFactory.getCompressor(CompressionType.of(name));
        byte[] unpacked = compressor.decompress(packed);
        Base64.Encoder encoder = Base64.getEncoder();
        System.out.printf("BODY %s %s %s%n", name, encoder.encodeToString(unpacked),
            encoder.encodeToString(compressor.compress(unpacked, 5)));
    }
}
