package bkheal;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;

/** Apache clients by name, each with its own ZooKeeper session and connections. "v3" and "v2" make themselves. */
final class Clients {
    /** Longer than a bookie's disk is held up on a busy machine, shorter than the commands' own deadlines. */
    private static final int ANSWER_TIMEOUT_S = 40;
    /** The longest that the tests' ZooKeeper grants. */
    private static final int SESSION_TIMEOUT_MS = 60_000;

    private final String metadataUri;
    private final Map<String, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<String, LedgerUnderreplicationManager> tasks = new ConcurrentHashMap<>();

    Clients(String metadataUri) {
        this.metadataUri = metadataUri;
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("client", (request, answer) -> {
            String name = request.get("name").asText();
            if (clients.containsKey(name)) {
                throw new IllegalArgumentException("there is a client " + name);
            }
            clients.put(name, connect(request));
        });
        // Leaves ledgers that it writes open, as a process that dies does.
        commands.put("drop_client", (request, answer) -> {
            String name = request.get("name").asText();
            LedgerUnderreplicationManager held = tasks.remove(name);
            if (held != null) {
                held.close();
            }
            BookKeeper client = clients.remove(name);
            if (client != null) {
                try {
                    client.close();
                } catch (NullPointerException race) {
                    // Apache's close forgets a connection while an answer that is still under way looks for it.
                    System.err.println("client " + name + " closed untidily: " + race);
                }
            }
        });
    }

    BookKeeper of(JsonNode request) throws Exception {
        String name = request.path("client").asText("v3");
        synchronized (clients) {
            BookKeeper client = clients.get(name);
            if (client == null && (name.equals("v3") || name.equals("v2"))) {
                client = connect(Driver.JSON.createObjectNode().put("name", name).put("v2", name.equals("v2")));
                clients.put(name, client);
            }
            if (client == null) {
                throw new IllegalArgumentException("no client " + name);
            }
            return client;
        }
    }

    /** Not to be closed: it shares the client's connections. */
    BookKeeperAdmin admin(JsonNode request) throws Exception {
        return new BookKeeperAdmin(of(request));
    }

    /** Locks that are taken through it belong to the client's session. */
    LedgerUnderreplicationManager tasks(JsonNode request) throws Exception {
        BookKeeper client = of(request);
        String name = request.path("client").asText("v3");
        synchronized (tasks) {
            LedgerUnderreplicationManager manager = tasks.get(name);
            if (manager == null) {
                manager = client.getLedgerManagerFactory().newLedgerUnderreplicationManager();
                tasks.put(name, manager);
            }
            return manager;
        }
    }

    private BookKeeper connect(JsonNode request) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(request.path("uri").asText(metadataUri));
        configuration.setUseV2WireProtocol(request.path("v2").asBoolean(false));
        configuration.setZkTimeout(SESSION_TIMEOUT_MS);
        configuration.setAddEntryTimeout(ANSWER_TIMEOUT_S);
        configuration.setReadEntryTimeout(ANSWER_TIMEOUT_S);
        configuration.setNumIOThreads(1);
        configuration.setNumWorkerThreads(1);
        request.path("settings").fields().forEachRemaining(setting ->
                configuration.setProperty(setting.getKey(), setting.getValue().asText()));
        return BookKeeper.forConfig(configuration).build();
    }
}
