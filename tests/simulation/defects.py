"""Every planted defect."""

from tests.simulation.planted_client import CLIENT_DEFECTS
from tests.simulation.planted_repair import REPAIR_DEFECTS
from tests.simulation.planted_storage import STORAGE_DEFECTS
from tests.simulation.planting import Defect

DEFECTS: dict[str, Defect] = {**STORAGE_DEFECTS, **CLIENT_DEFECTS, **REPAIR_DEFECTS}
