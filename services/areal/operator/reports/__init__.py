"""Reports of a job's roles and orders to them, over gRPC."""

from areal.operator.reports.ask import Asker, Targets
from areal.operator.reports.dialer import Dialer, by_pod_ip
from areal.operator.reports.poller import Poller

__all__ = ["Asker", "Dialer", "Poller", "Targets", "by_pod_ip"]
