"""The store of reports: files at an address (``spark_jobs.remote_files``), with its own error."""

from __future__ import annotations

from spark_jobs.remote_files import CALL_S, RemoteFiles
from spark_jobs.report.files import ReportDirError
from spark_jobs.store_address import StoreAddress


class ReportStoreError(ReportDirError):
    """The store of reports cannot be read or written."""


class ReportStore(RemoteFiles):
    """Reports below an address; each of its methods raises ``ReportStoreError``."""

    def __init__(self, address: StoreAddress, *, call_s: float = CALL_S) -> None:
        """Only store the arguments; the first call opens the file system.

        Args:
            address: address of the folder of all reports.
            call_s: time limit of each call, seconds, in addition to the time for the bytes.
        """
        super().__init__(address, ReportStoreError, call_s=call_s)
