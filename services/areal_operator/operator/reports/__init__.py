"""Reports of a job's roles and orders to them, over gRPC."""

from areal_operator.operator.reports.ask import Asker, Targets
from areal_operator.operator.reports.dialer import Dialer, by_pod_ip
from areal_operator.operator.reports.poller import Poller

__all__ = ["Asker", "Dialer", "Poller", "Targets", "by_pod_ip"]
