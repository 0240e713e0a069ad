package bkheal;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.api.BKException;

/**
 * Runs commands against Apache's own client, for tests: one JSON object per line in, one per line out, on a loopback
 * port. Each connection is served by a thread of its own; clients and handles belong to the process, not to it.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    /** What one command does: reads the request, fills the answer. */
    interface Command {
        void run(JsonNode request, ObjectNode answer) throws Exception;
    }

    private final Map<String, Command> commands = new HashMap<>();

    private Driver(String metadataUri) {
        Clients clients = new Clients(metadataUri);
        clients.register(commands);
        new Ledgers(clients).register(commands);
        new Metadata(clients).register(commands);
        new Tasks(clients).register(commands);
        new Copies(clients).register(commands);
    }

    public static void main(String[] arguments) throws IOException {
        Driver driver = new Driver(arguments[0]);
        try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"))) {
            System.out.println("driver ready on " + server.getLocalPort());
            while (true) {
                Socket socket = server.accept();
                Thread thread = new Thread(() -> driver.serve(socket), "commands");
                thread.setDaemon(true);
                thread.start();
            }
        }
    }

    private void serve(Socket socket) {
        try (socket;
                BufferedReader reader =
                        new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
                OutputStream out = socket.getOutputStream()) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                out.write((JSON.writeValueAsString(answer(line)) + "\n").getBytes(StandardCharsets.UTF_8));
                out.flush();
            }
        } catch (IOException gone) {
            // The test that asked is gone; what it started stays.
        }
    }

    private ObjectNode answer(String line) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            JsonNode request = JSON.readTree(line);
            Command command = commands.get(request.get("command").asText());
            if (command == null) {
                throw new IllegalArgumentException("no such command: " + request.get("command"));
            }
            command.run(request, answer);
            return answer;
        } catch (Exception failure) {
            Throwable cause = failure;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            ObjectNode error = JSON.createObjectNode();
            error.put("error", cause.getClass().getSimpleName());
            error.put("code", cause instanceof BKException ? ((BKException) cause).getCode() : 0);
            error.put("message", String.valueOf(cause.getMessage()));
            return error;
        }
    }
}
