package bkheal;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;

/** Under-replication tasks, their locks and switches, through Apache's own manager. */
final class Tasks {
    private static final long DEADLINE_S = 60;

    private final Clients clients;

    Tasks(Clients clients) {
        this.clients = clients;
    }

    void register(Map<String, Driver.Command> commands) {
        commands.put("mark", (request, answer) -> {
            List<String> replicas = new ArrayList<>();
            request.get("missing").forEach(name -> replicas.add(name.asText()));
            clients.tasks(request).markLedgerUnderreplicatedAsync(request.get("ledger").asLong(), replicas)
                    .get(DEADLINE_S, TimeUnit.SECONDS);
        });
        commands.put("tasks", (request, answer) -> {
            ArrayNode tasks = answer.putArray("tasks");
            clients.tasks(request).listLedgersToRereplicate(null)
                    .forEachRemaining(task -> describe(task, tasks.addObject()));
        });
        commands.put("task", (request, answer) -> {
            UnderreplicatedLedger task =
                    clients.tasks(request).getLedgerUnreplicationInfo(request.get("ledger").asLong());
            answer.put("found", task != null);
            if (task != null) {
                describe(task, answer);
            }
        });
        commands.put("poll_task", (request, answer) ->
                answer.put("ledger", clients.tasks(request).pollLedgerToRereplicate()));
        commands.put("lock", (request, answer) ->
                clients.tasks(request).acquireUnderreplicatedLedger(request.get("ledger").asLong()));
        commands.put("release", (request, answer) ->
                clients.tasks(request).releaseUnderreplicatedLedger(request.get("ledger").asLong()));
        commands.put("complete", (request, answer) ->
                clients.tasks(request).markLedgerReplicated(request.get("ledger").asLong()));
        commands.put("lock_owner", (request, answer) -> {
            LedgerUnderreplicationManager manager = clients.tasks(request);
            long ledger = request.get("ledger").asLong();
            boolean isLocked = manager.isLedgerBeingReplicated(ledger);
            answer.put("locked", isLocked);
            answer.put("owner", isLocked ? manager.getReplicationWorkerIdRereplicatingLedger(ledger) : null);
        });
        commands.put("switch_recovery", (request, answer) -> {
            if (request.get("on").asBoolean()) {
                clients.tasks(request).enableLedgerReplication();
            } else {
                clients.tasks(request).disableLedgerReplication();
            }
        });
        commands.put("recovery_state", (request, answer) -> {
            LedgerUnderreplicationManager manager = clients.tasks(request);
            answer.put("on", manager.isLedgerReplicationEnabled());
            answer.put("check_all_ledgers_ctime", manager.getCheckAllLedgersCTime());
            answer.put("placement_policy_check_ctime", manager.getPlacementPolicyCheckCTime());
            answer.put("replicas_check_ctime", manager.getReplicasCheckCTime());
        });
        commands.put("set_check_times", (request, answer) -> {
            LedgerUnderreplicationManager manager = clients.tasks(request);
            manager.setCheckAllLedgersCTime(request.get("check_all_ledgers_ctime").asLong());
            manager.setPlacementPolicyCheckCTime(request.get("placement_policy_check_ctime").asLong());
            manager.setReplicasCheckCTime(request.get("replicas_check_ctime").asLong());
        });
        commands.put("delay", (request, answer) -> {
            LedgerUnderreplicationManager manager = clients.tasks(request);
            if (request.hasNonNull("seconds")) {
                manager.setLostBookieRecoveryDelay(request.get("seconds").asInt());
            }
            answer.put("seconds", manager.getLostBookieRecoveryDelay());
        });
    }

    private static void describe(UnderreplicatedLedger task, ObjectNode answer) {
        answer.put("ledger", task.getLedgerId());
        answer.put("ctime", task.getCtime());
        task.getReplicaList().forEach(answer.putArray("missing")::add);
    }
}
