"""The ledgers that the image of ledger metadata names for some bookies (record 81: an image decides nothing)."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.operating.client import ClusterClient
from auditor.operating.what_if import NamedLedgers
from bookie.model.ids import BookieId, LedgerId
from spark_jobs.image import files
from spark_jobs.image.folder import image_folder
from spark_jobs.image.manifest import check_usable
from spark_jobs.image.suspects import suspects
from spark_jobs.options.image import IMAGE_AGE_MAX_S


def named_by_image(client: ClusterClient, image: str, bookies: Sequence[BookieId]) -> NamedLedgers:
    """Read the index of the current image for these bookies.

    Raises:
        ImageError: there is no image, or it is damaged, of another cluster, or too old.
    """
    folder, manifest = files.newest(image_folder(image), client.cluster)
    check_usable(manifest, client.cluster, client.ports.clock.epoch_ms(), IMAGE_AGE_MAX_S)
    found = suspects(folder, manifest, frozenset(bookies), frozenset(bookies), frozenset())
    return NamedLedgers([LedgerId(each) for each in found.ids.to_pylist()], manifest.read_from_ms)
