"""``bkheal drain start`` lists the bookies that it cannot make read-only, and prints what to do about them."""

from __future__ import annotations

from auditor.cli.drains.begin import question as asked_question
from auditor.cli.drains.begin import stay_read_only_note, stay_writable_note
from auditor.operating.drains import bookies_without_drain_support
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, PROTOCOL_GRPC, Endpoint, ServiceInfo
from bookie.model.ids import BookieId
from tests.worlds.ledgers import names
from tests.worlds.repair import RepairWorld
from tests.worlds.virtual_time import in_virtual_time


def info(*protocols: str) -> ServiceInfo:
    return ServiceInfo(tuple(Endpoint(protocol, "h", 3181, protocol) for protocol in protocols))


@in_virtual_time
async def test_bookies_with_only_apaches_protocol_are_named_with_their_state() -> None:
    world = RepairWorld()
    await world.start("")
    for name, found, is_read_only in (
        ("ours", info(PROTOCOL_GRPC), False),
        ("both", info(PROTOCOL_GRPC, PROTOCOL_APACHE), False),
        ("apache", info(PROTOCOL_APACHE), False),
        ("stopped", info(PROTOCOL_APACHE), True),
        ("full", info(PROTOCOL_GRPC), True),
    ):
        await world.registrations.register(BookieId(name), found, is_read_only=is_read_only, takeover_deadline_s=1)
    asked = names("ours both apache stopped full away")
    assert await bookies_without_drain_support(world.registrations, asked) == (["apache"], ["stopped"])
    await world.close()


def test_the_prompt_and_the_note_promise_only_what_an_apache_bookie_does() -> None:
    ours, apache, stopped = names("ours apache stopped")
    assert asked_question([ours], [], []) == "Drain ours? It becomes read-only."
    assert asked_question([ours, stopped], [], []) == "Drain ours, stopped? They become read-only."
    assert asked_question([ours, apache], [apache], []).endswith("apache: Apache's, stays writable.")
    assert "switched to read-only" not in asked_question([apache], [apache], [])
    question = asked_question([stopped, ours], [], [stopped])
    assert "ours: switched to read-only." in question
    assert "stopped: Apache's, read-only as long as its own setting is." in question
    assert "switched to read-only" not in asked_question([stopped], [], [stopped])
    note = stay_writable_note([apache])
    for text in ("apache: ", "forceReadOnlyBookie=true", "/api/v1/bookie/state/readonly", "does not choose it"):
        assert text in note
    note = stay_read_only_note([stopped])
    for text in ("stopped: ", "not by the drain", "forceReadOnlyBookie=true", "does not make it writable"):
        assert text in note
