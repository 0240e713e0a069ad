package bkheal;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;

/** Ledgers through Apache's public API. */
final class Ledgers {
    private static final int IN_FLIGHT_MAX = 200;
    private static final long DEADLINE_S = 60;

    private final Clients clients;
    private final Map<String, ReadHandle> handles = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    Ledgers(Clients clients) {
        this.clients = clients;
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("create", this::create);
        commands.put("open", this::open);
        commands.put("write", this::write);
        commands.put("read", this::read);
        commands.put("handle", (request, answer) -> describe(handle(request), answer));
        commands.put("force", (request, answer) -> {
            ((org.apache.bookkeeper.client.api.ForceableHandle) handle(request)).force().get(DEADLINE_S, TimeUnit.SECONDS);
            describe(handle(request), answer);
        });
        commands.put("read_lac", (request, answer) -> answer.put("lac", handle(request).readLastAddConfirmed()));
        commands.put("try_read_lac", (request, answer) -> answer.put("lac", handle(request).tryReadLastAddConfirmed()));
        commands.put("wait_lac", this::waitLac);
        commands.put("close", (request, answer) -> {
            ReadHandle handle = handle(request);
            handle.close();
            handles.remove(request.get("handle").asText());
            describe(handle, answer);
        });
        commands.put("delete", (request, answer) -> clients.of(request).newDeleteLedgerOp()
                .withLedgerId(request.get("ledger").asLong()).execute().get(DEADLINE_S, TimeUnit.SECONDS));
        commands.put("ledgers", (request, answer) -> {
            ArrayNode ids = answer.putArray("ledgers");
            clients.admin(request).listLedgers().forEach(ids::add);
        });
    }

    private ReadHandle handle(JsonNode request) {
        ReadHandle handle = handles.get(request.get("handle").asText());
        if (handle == null) {
            throw new IllegalArgumentException("no handle " + request.get("handle"));
        }
        return handle;
    }

    private void keep(ReadHandle handle, ObjectNode answer) {
        String name = "h" + numbers.incrementAndGet();
        handles.put(name, handle);
        answer.put("handle", name);
        describe(handle, answer);
    }

    private static void describe(ReadHandle handle, ObjectNode answer) {
        answer.put("ledger", handle.getId());
        answer.put("lac", handle.getLastAddConfirmed());
        answer.put("length", handle.getLength());
        answer.put("closed", handle.isClosed());
    }

    private void create(JsonNode request, ObjectNode answer) throws Exception {
        Map<String, byte[]> custom = new HashMap<>();
        request.path("custom").fields().forEachRemaining(item ->
                custom.put(item.getKey(), Bytes.unhex(item.getValue().asText())));
        CreateBuilder builder = clients.of(request).newCreateLedgerOp()
                .withEnsembleSize(request.get("ensemble").asInt())
                .withWriteQuorumSize(request.get("write_quorum").asInt())
                .withAckQuorumSize(request.get("ack_quorum").asInt())
                .withDigestType(DigestType.valueOf(request.get("digest").asText()))
                .withPassword(Bytes.unhex(request.get("password").asText()))
                .withCustomMetadata(custom);
        if (request.path("deferred_sync").asBoolean(false)) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        if (request.path("own_ids").asBoolean(false)) {
            var own = builder.makeAdv();
            if (request.hasNonNull("ledger")) {
                own = own.withLedgerId(request.get("ledger").asLong());
            }
            keep(own.execute().get(DEADLINE_S, TimeUnit.SECONDS), answer);
        } else {
            keep(builder.execute().get(DEADLINE_S, TimeUnit.SECONDS), answer);
        }
    }

    private void open(JsonNode request, ObjectNode answer) throws Exception {
        keep(clients.of(request).newOpenLedgerOp()
                .withLedgerId(request.get("ledger").asLong())
                .withDigestType(DigestType.valueOf(request.get("digest").asText()))
                .withPassword(Bytes.unhex(request.get("password").asText()))
                .withRecovery(request.get("recovery").asBoolean())
                .execute().get(DEADLINE_S, TimeUnit.SECONDS), answer);
    }

    /**
     * Entries of seeded payloads; "sizes" is gone through again and again, by entry id. With "aloud", a line on standard
     * output for each that is acknowledged, for those who kill this process.
     */
    private void write(JsonNode request, ObjectNode answer) throws Exception {
        ReadHandle handle = handle(request);
        String seed = request.get("seed").asText();
        JsonNode sizes = request.get("sizes");
        List<Long> ids = new ArrayList<>();
        if (request.hasNonNull("ids")) {
            request.get("ids").forEach(id -> ids.add(id.asLong()));
        } else {
            long first = ((WriteHandle) handle).getLastAddPushed() + 1;
            for (long id = first; id < first + request.get("count").asLong(); id++) {
                ids.add(id);
            }
        }
        boolean isAloud = request.path("aloud").asBoolean(false);
        List<CompletableFuture<Long>> inFlight = new ArrayList<>();
        for (long id : ids) {
            byte[] payload = Bytes.payload(seed, id, sizes.get((int) (id % sizes.size())).asInt());
            CompletableFuture<Long> added = handle instanceof WriteAdvHandle
                    ? ((WriteAdvHandle) handle).writeAsync(id, payload)
                    : ((WriteHandle) handle).appendAsync(payload);
            if (isAloud) {
                added = added.whenComplete((entry, failure) -> {
                    if (failure == null) {
                        System.out.println("acknowledged " + entry + " of ledger " + handle.getId());
                    }
                });
            }
            inFlight.add(added);
            if (inFlight.size() == IN_FLIGHT_MAX) {
                await(inFlight);
            }
        }
        await(inFlight);
        describe(handle, answer);
    }

    private static void await(List<CompletableFuture<Long>> inFlight) throws Exception {
        CompletableFuture.allOf(inFlight.toArray(new CompletableFuture[0])).get(DEADLINE_S, TimeUnit.SECONDS);
        inFlight.clear();
    }

    private void read(JsonNode request, ObjectNode answer) throws Exception {
        ReadHandle handle = handle(request);
        long first = request.get("first").asLong();
        long last = request.get("last").asLong();
        CompletableFuture<LedgerEntries> reading;
        if (request.hasNonNull("batch_count")) {
            reading = handle.batchReadAsync(
                    first, request.get("batch_count").asInt(), request.path("batch_bytes").asLong(0));
        } else if (request.path("unconfirmed").asBoolean(false)) {
            reading = handle.readUnconfirmedAsync(first, last);
        } else {
            reading = handle.readAsync(first, last);
        }
        ArrayNode entries = answer.putArray("entries");
        try (LedgerEntries found = reading.get(DEADLINE_S, TimeUnit.SECONDS)) {
            for (LedgerEntry entry : found) {
                add(entry, request, entries);
            }
        }
        describe(handle, answer);
    }

    private static void add(LedgerEntry entry, JsonNode request, ArrayNode entries) throws Exception {
        byte[] payload = entry.getEntryBytes();
        ObjectNode one = entries.addObject();
        one.put("id", entry.getEntryId());
        one.put("length", entry.getLength());
        one.put("size", payload.length);
        one.put("sha256", Bytes.hex(Bytes.sha256(payload)));
        if (request.path("payloads").asBoolean(false)) {
            one.put("payload", Bytes.hex(payload));
        }
    }

    private void waitLac(JsonNode request, ObjectNode answer) throws Exception {
        ReadHandle handle = handle(request);
        try (LastConfirmedAndEntry found = handle.readLastAddConfirmedAndEntry(
                request.get("entry").asLong(),
                request.get("timeout_ms").asLong(),
                request.path("parallel").asBoolean(false))) {
            answer.put("lac", found.getLastAddConfirmed());
            ArrayNode entries = answer.putArray("entries");
            if (found.hasEntry()) {
                add(found.getEntry(), request, entries);
            }
        }
    }
}
