package bkheal;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collection;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;

/** Ledger metadata and the list of bookies, as Apache understands them. */
final class Metadata {
    private static final long DEADLINE_S = 60;

    private final Clients clients;

    Metadata(Clients clients) {
        this.clients = clients;
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("metadata", (request, answer) -> {
            var found = clients.of(request).getLedgerManager()
                    .readLedgerMetadata(request.get("ledger").asLong()).get(DEADLINE_S, TimeUnit.SECONDS);
            describe(found.getValue(), answer);
            answer.put("version", found.getVersion().toString());
        });
        // What Apache reads out of bytes, and what it writes for that again.
        commands.put("parse", (request, answer) -> {
            LedgerMetadataSerDe serDe = new LedgerMetadataSerDe();
            Optional<Long> ctime = request.hasNonNull("node_ctime")
                    ? Optional.of(request.get("node_ctime").asLong()) : Optional.empty();
            LedgerMetadata metadata = serDe.parseConfig(
                    Bytes.unhex(request.get("data").asText()), request.path("ledger").asLong(0), ctime);
            describe(metadata, answer);
            answer.put("data", Bytes.hex(serDe.serialize(metadata)));
        });
        commands.put("bookies", (request, answer) -> {
            BookKeeperAdmin admin = clients.admin(request);
            list(admin.getAvailableBookies(), answer.putArray("writable"));
            list(admin.getReadOnlyBookies(), answer.putArray("read_only"));
            list(admin.getAllBookies(), answer.putArray("all"));
        });
        commands.put("service_info", (request, answer) -> {
            var info = clients.admin(request).getBookieServiceInfo(BookieId.parse(request.get("bookie").asText()));
            ArrayNode endpoints = answer.putArray("endpoints");
            info.getEndpoints().forEach(endpoint -> {
                ObjectNode one = endpoints.addObject();
                one.put("id", endpoint.getId());
                one.put("host", endpoint.getHost());
                one.put("port", endpoint.getPort());
                one.put("protocol", endpoint.getProtocol());
                endpoint.getAuth().forEach(one.putArray("auth")::add);
                endpoint.getExtensions().forEach(one.putArray("extensions")::add);
            });
            ObjectNode properties = answer.putObject("properties");
            info.getProperties().forEach(properties::put);
        });
        commands.put("disk_space", (request, answer) -> clients.of(request).getBookieInfo().forEach((bookie, info) -> {
            ObjectNode one = answer.putObject(bookie.toString());
            one.put("free", info.getFreeDiskSpace());
            one.put("total", info.getTotalDiskSpace());
        }));
        commands.put("auditor", (request, answer) -> {
            BookieId auditor = clients.admin(request).getCurrentAuditor();
            answer.put("auditor", auditor == null ? null : auditor.toString());
        });
    }

    private static void list(Collection<BookieId> bookies, ArrayNode names) {
        bookies.stream().map(BookieId::toString).sorted().forEach(names::add);
    }

    private static void describe(LedgerMetadata metadata, ObjectNode answer) {
        answer.put("format", metadata.getMetadataFormatVersion());
        answer.put("state", metadata.getState().name());
        answer.put("ensemble", metadata.getEnsembleSize());
        answer.put("write_quorum", metadata.getWriteQuorumSize());
        answer.put("ack_quorum", metadata.getAckQuorumSize());
        answer.put("last_entry", metadata.getLastEntryId());
        answer.put("length", metadata.getLength());
        answer.put("ctime", metadata.getCtime());
        answer.put("ctoken", metadata.getCToken());
        answer.put("digest", metadata.hasPassword() ? metadata.getDigestType().name() : null);
        answer.put("password", metadata.hasPassword() ? Bytes.hex(metadata.getPassword()) : null);
        ObjectNode ensembles = answer.putObject("ensembles");
        metadata.getAllEnsembles().forEach((first, members) -> {
            ArrayNode names = ensembles.putArray(String.valueOf(first));
            members.forEach(member -> names.add(member.toString()));
        });
        ObjectNode custom = answer.putObject("custom");
        metadata.getCustomMetadata().forEach((key, value) -> custom.put(key, Bytes.hex(value)));
    }
}
