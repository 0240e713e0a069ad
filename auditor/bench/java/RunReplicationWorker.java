import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.ReplicationWorker;

/**
 * Only Apache's replication worker, started as in its auto-recovery daemon. It runs until its input ends.
 *
 * <p>Arguments: file with settings. Prints one line of JSON when it works, or when it waits because repair is disabled.
 */
public final class RunReplicationWorker {
    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] arguments) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.loadConf(new java.io.File(arguments[0]).toURI().toURL());
        new ReplicationWorker(conf).start();
        System.out.println("{\"event\":\"ready\"}");
        System.out.flush();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (input.readLine() != null) {
            continue;
        }
    }
}
