package bkheal;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerChecker;
import org.apache.bookkeeper.client.LedgerFragment;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.util.ByteBufList;

/** Single copies on single bookies, what Apache's checker says of them, and Apache's repair. */
final class Copies {
    private static final long DEADLINE_S = 120;
    private static final int PERCENT = 100;

    private final Clients clients;

    Copies(Clients clients) {
        this.clients = clients;
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("read_copy", this::readCopy);
        commands.put("add_copy", this::addCopy);
        commands.put("check", this::check);
        commands.put("recover", (request, answer) -> {
            Set<BookieId> bookies = new HashSet<>();
            request.get("bookies").forEach(name -> bookies.add(BookieId.parse(name.asText())));
            clients.admin(request).recoverBookieData(
                    bookies, false, request.path("skips_open").asBoolean(false));
        });
        commands.put("available_entries", (request, answer) -> {
            var available = bookieClient(request).getListOfEntriesOfLedger(
                    bookie(request), request.get("ledger").asLong()).get(DEADLINE_S, TimeUnit.SECONDS);
            answer.put("total", available.getTotalNumOfAvailableEntries());
            answer.put("data", Bytes.hex(available.serializeStateOfEntriesOfLedger()));
            ArrayNode ids = answer.putArray("ids");
            for (long id = 0, left = available.getTotalNumOfAvailableEntries(); left > 0; id++) {
                if (available.isEntryAvailable(id)) {
                    ids.add(id);
                    left--;
                }
            }
        });
    }

    private BookieClient bookieClient(JsonNode request) throws Exception {
        return new LedgerChecker(clients.of(request)).bookieClient;
    }

    private static BookieId bookie(JsonNode request) {
        return BookieId.parse(request.get("bookie").asText());
    }

    /** An entry as stored, digest and all. */
    private void readCopy(JsonNode request, ObjectNode answer) throws Exception {
        CompletableFuture<String> result = new CompletableFuture<>();
        boolean hasKey = request.hasNonNull("key");
        bookieClient(request).readEntry(
                bookie(request), request.get("ledger").asLong(), request.get("entry").asLong(),
                (code, ledger, entry, buffer, context) -> {
                    if (code == BKException.Code.OK) {
                        result.complete(ByteBufUtil.hexDump(buffer));
                    } else {
                        result.completeExceptionally(BKException.create(code));
                    }
                },
                null, request.path("flags").asInt(0), hasKey ? Bytes.unhex(request.get("key").asText()) : null);
        answer.put("data", result.get(DEADLINE_S, TimeUnit.SECONDS));
    }

    /** Stores bytes as an entry, right or wrong. For clients of protocol version 3. */
    private void addCopy(JsonNode request, ObjectNode answer) throws Exception {
        CompletableFuture<Void> result = new CompletableFuture<>();
        ByteBuf data = Unpooled.wrappedBuffer(Bytes.unhex(request.get("data").asText()));
        bookieClient(request).addEntry(
                bookie(request), request.get("ledger").asLong(), Bytes.unhex(request.get("key").asText()),
                request.get("entry").asLong(), ByteBufList.get(data),
                (code, ledger, entry, bookie, context) -> {
                    if (code == BKException.Code.OK) {
                        result.complete(null);
                    } else {
                        result.completeExceptionally(BKException.create(code));
                    }
                },
                null, request.path("flags").asInt(0), false, WriteFlag.NONE);
        result.get(DEADLINE_S, TimeUnit.SECONDS);
    }

    private void check(JsonNode request, ObjectNode answer) throws Exception {
        CompletableFuture<Set<LedgerFragment>> result = new CompletableFuture<>();
        LedgerHandle handle = clients.admin(request).openLedgerNoRecovery(request.get("ledger").asLong());
        try {
            new LedgerChecker(clients.of(request)).checkLedger(handle, (code, fragments) -> {
                if (code == BKException.Code.OK) {
                    result.complete(fragments);
                } else {
                    result.completeExceptionally(BKException.create(code));
                }
            }, PERCENT);
            ArrayNode fragments = answer.putArray("fragments");
            for (LedgerFragment fragment : result.get(DEADLINE_S, TimeUnit.SECONDS)) {
                ObjectNode one = fragments.addObject();
                one.put("first", fragment.getFirstEntryId());
                one.put("last", fragment.getLastKnownEntryId());
                one.put("closed", fragment.isClosed());
                fragment.getBookiesIndexes().stream().sorted().forEach(one.putArray("indexes")::add);
                fragment.getAddresses().stream().map(BookieId::toString).sorted().forEach(one.putArray("bookies")::add);
            }
        } finally {
            handle.close();
        }
    }
}
