package bkheal;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;

/** Payloads that Python and Java make alike, and their hashes. */
final class Bytes {
    private Bytes() {}

    /** SHA-256 of "seed/entry/0", "seed/entry/1", ... one after another, cut to size. */
    static byte[] payload(String seed, long entry, int size) throws Exception {
        byte[] payload = new byte[size];
        for (int at = 0, block = 0; at < size; at += 32, block++) {
            byte[] hash = sha256((seed + "/" + entry + "/" + block).getBytes(StandardCharsets.UTF_8));
            System.arraycopy(hash, 0, payload, at, Math.min(32, size - at));
        }
        return payload;
    }

    static byte[] sha256(byte[] data) throws Exception {
        return MessageDigest.getInstance("SHA-256").digest(data);
    }

    static String hex(byte[] data) {
        return HexFormat.of().formatHex(data);
    }

    static byte[] unhex(String text) {
        return HexFormat.of().parseHex(text);
    }
}
