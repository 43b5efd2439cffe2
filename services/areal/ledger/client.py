"""The replay client: `AsyncLedger` for the controller and the workers, `SyncLedger` for the trainer."""

from areal.ledger.async_client import AsyncLedger
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import (
    COMPLETE,
    AddOutcome,
    AddResult,
    CloseResult,
    CloseStatus,
    LedgerSnapshot,
    NewSample,
    SampleMeta,
    TakenGroup,
    TombstoneReason,
)

__all__ = [
    "COMPLETE",
    "AddOutcome",
    "AddResult",
    "AsyncLedger",
    "CloseResult",
    "CloseStatus",
    "LedgerSnapshot",
    "NewSample",
    "SampleMeta",
    "SyncLedger",
    "TakenGroup",
    "TombstoneReason",
]
