"""What-if with an image: the image names the ledgers, ZooKeeper decides, and the answer has the age of the image."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app
from auditor.operating.client import ClusterClient
from auditor.operating.named_by_image import named_by_image
from auditor.operating.what_if import what_if, what_if_lines
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.run import started_ms
from spark_jobs.image import files
from spark_jobs.image.folder import LocalImageFolder
from spark_jobs.image.manifest import ImageError, Manifest
from spark_jobs.image.part import ImageFile, ImagePart
from tests.worlds.api import ApiWorld, running
from tests.worlds.clocks import EPOCH_MS
from tests.worlds.ledgers import make_metadata

RUN = "20261120T101500Z-0a1b2c"
C = BookieId("c")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with running(tmp_path) as made:
        yield made


def write_image(client: ClusterClient, image_dir: Path, *ledgers: int, read_from_ms: int) -> None:
    writing = files.begin(LocalImageFolder(image_dir), client.cluster, RUN)
    part = ImagePart(writing)
    for ledger_id in ledgers:
        part.add(ledger_id, 3, 2, 2, 2, ("c", "d"))
    listed = tuple(ImageFile(**file) for file in part.finish()["files"])
    cluster = client.cluster
    name = (RUN, cluster.instance_id, cluster.root, cluster.kind.value)
    files.commit(writing, Manifest(*name, read_from_ms, len(ledgers), ("c", "d"), listed), started_ms(RUN) or 0)


async def test_only_ledgers_in_the_image_are_read_and_their_current_state_is_judged(
    world: ApiWorld, tmp_path: Path
) -> None:
    async with world.upkeep.cluster.connected("") as client:
        for ledger_id, members in ((10, "c d"), (11, "d e"), (12, "c d")):
            await client.ports.ledgers.create(ledger_id, make_metadata((0, members), quorum=(2, 2), last=9))
        now_ms = client.ports.clock.epoch_ms()
        write_image(client, tmp_path, 10, 11, 13, read_from_ms=now_ms - 90_000)
        named = named_by_image(client, str(tmp_path), [C])
        assert named.ids == [10, 11, 13]
        answer = await what_if(client, [C], named=named)
        assert (answer["source"], answer["image_age_seconds"], answer["ledgers"]) == ("image", 90, 2)
        assert [row["ledger_id"] for row in answer["worst"]] == [10], "11 was moved, 12 is newer, 13 was deleted"
        assert "an image that is 1 min 30 s old" in "\n".join(what_if_lines(answer))
        assert (await what_if(client, [C]))["findings"][0]["ledgers"] == 2


async def test_a_missing_or_outdated_image_is_refused(world: ApiWorld, tmp_path: Path) -> None:
    async with world.upkeep.cluster.connected("") as client:
        with pytest.raises(ImageError, match="there is none"):
            named_by_image(client, str(tmp_path), [C])
        write_image(client, tmp_path, 10, read_from_ms=EPOCH_MS - 366 * 86_400_000)
        with pytest.raises(ImageError, match="old"):
            named_by_image(client, str(tmp_path), [C])


def test_an_image_address_with_a_password_is_refused_before_anything_is_read() -> None:
    words = ["what-if", "c:1", "--metadata-uri", "zk://127.0.0.1:1/ledgers", "--image", "s3a://key:pass-word@b/image"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "must not contain a user or a password" in " ".join(result.output.split())
    assert "pass-word" not in result.output
