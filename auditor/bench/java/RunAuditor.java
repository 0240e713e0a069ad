import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.Auditor;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.stats.OpStatsLogger;
import org.apache.bookkeeper.stats.StatsLogger;

/**
 * Apache's auditor, elected and started as in its own daemon. It audits once for each line "audit" on its input.
 *
 * <p>Arguments: file with settings. Prints one line of JSON for each event. Ends when its input ends.
 */
public final class RunAuditor {
    /** The metric that Apache's auditor records when the tasks of all lost bookies are published. */
    private static final String PUBLISHED = "URL_PUBLISH_TIME_FOR_LOST_BOOKIE";

    private static final long QUIET_MS = 2000;

    private static AuditorElector elector;
    private static volatile long firstPublished;
    private static volatile int published;

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
        say("{\"event\":\"ready\"}");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (line.equals("audit")) {
                firstPublished = 0;
                long started = System.nanoTime();
                audit(conf);
                if (firstPublished == 0) {
                    throw new IllegalStateException("the audit found no lost bookie");
                }
                say("{\"event\":\"audited\",\"seconds\":" + (firstPublished - started) / 1e9
                        + ",\"audits\":" + published + "}");
                published = 0;
            }
        }
    }

    /**
     * The first audit is the one at the start. A later one is submitted as the auditor does when a bookie is lost. A
     * second audit may follow the start at once, because the auditor has not seen the list of bookies before: that one
     * is awaited, but not counted.
     */
    private static void audit(ServerConfiguration conf) throws Exception {
        if (elector == null) {
            Method connect = Auditor.class.getDeclaredMethod("createBookKeeperClient", ServerConfiguration.class);
            connect.setAccessible(true);
            BookKeeper client = (BookKeeper) connect.invoke(null, conf);
            elector = new AuditorElector("127.0.0.1:1", conf, client, stats(), true);
            elector.start().get(60, TimeUnit.SECONDS);
        } else {
            Method submit = Auditor.class.getDeclaredMethod("submitBookieCheckTask");
            submit.setAccessible(true);
            submit.invoke(auditor());
        }
        Field executor = Auditor.class.getDeclaredField("executor");
        executor.setAccessible(true);
        // The auditor has one thread, so a task that is submitted now runs after the check.
        int before;
        do {
            before = published;
            ((ExecutorService) executor.get(auditor())).submit(() -> { }).get();
            Thread.sleep(QUIET_MS);
        } while (published != before);
    }

    /** Records when tasks are published, and discards all other statistics. */
    private static StatsLogger stats() {
        return (StatsLogger) Proxy.newProxyInstance(RunAuditor.class.getClassLoader(),
            new Class<?>[] {StatsLogger.class}, (self, method, arguments) -> switch (method.getName()) {
                case "scope", "scopeLabel" -> self;
                case "getOpStatsLogger", "getThreadScopedOpStatsLogger" ->
                    PUBLISHED.equals(arguments[0]) ? noted() : method.invoke(NullStatsLogger.INSTANCE, arguments);
                default -> method.invoke(NullStatsLogger.INSTANCE, arguments);
            });
    }

    private static OpStatsLogger noted() {
        return (OpStatsLogger) Proxy.newProxyInstance(RunAuditor.class.getClassLoader(),
            new Class<?>[] {OpStatsLogger.class}, (self, method, arguments) -> {
                if (method.getName().equals("registerSuccessfulEvent")) {
                    if (firstPublished == 0) {
                        firstPublished = System.nanoTime();
                    }
                    published++;
                }
                return null;
            });
    }

    private static Auditor auditor() throws Exception {
        Field field = AuditorElector.class.getDeclaredField("auditor");
        field.setAccessible(true);
        return (Auditor) field.get(elector);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
