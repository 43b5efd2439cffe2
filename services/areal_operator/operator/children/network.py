"""NetworkPolicies: one a role, made from the table of calls between roles.

A call is what the table of roles says of caller and callee; the security page is made from the same. A pod accepts
what the table lists for its role and nothing else, and dials what the table lists, names of the cluster's DNS, and
nothing else, whatever token the caller holds. The platform's runtime opens the way out for the roles that run users'
code, or manages policies itself.
"""

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from areal.plan import cluster_names as names
from areal.plan.callers import LAUNCHER_METHODS, Outsider
from areal.plan.cluster_names import Role
from areal.plan.role_specs import ROLE_SPECS, batch_jobs, spec_of

from areal_operator.operator.children.wanted import JobBlueprint, Json, child

NAMESPACE_NAME = "kubernetes.io/metadata.name"  # set by Kubernetes on every namespace
OPERATOR_LABELS = {names.LABEL_NAME: names.APP_NAME, names.LABEL_COMPONENT: Outsider.OPERATOR.value}
"""Of the operator's own pods, by which jobs' pods let it in."""

_DNS_PORT = 53
_POD_DNS_PORT = 5353  # what some clusters' DNS pods listen on; the policy sees the port behind the Service
_TRACED = (Role.CONTROLLER, Role.WORKER, Role.GENERATION, Role.TRAINER)
_WEB_PORTS = {"http": 80, "https": 443}
_API_SERVER_PORTS = (443, 6443)  # its Service's, and what most servers listen on themselves; where it is no pod knows
_EXTERNAL_REDIS_PORTS = (names.REDIS_PORT, 6380)  # plain and TLS; the address is in the user's Secret


def network_policies(w: JobBlueprint) -> list[Json]:
    """The policies of all the job's roles; none where the runtime leaves them to somebody else."""
    if w.runtime.network_policy.mode == "Unmanaged":
        return []
    return [_policy(w, role) for role in (*w.roles, *w.beside, *batch_jobs())]


def _policy(w: JobBlueprint, role: Role) -> Json:
    rules = {"ingress": _ingress(w, role), "egress": _egress(w, role)}
    spec: Json = {
        "podSelector": {"matchLabels": names.selector(w.name, role)},
        "policyTypes": ["Ingress", "Egress"],
        **{way: listed for way, listed in rules.items() if listed},  # an API server counts [] as a change, every time
    }
    return child(w, "networking.k8s.io/v1", "NetworkPolicy", names.workload(w.name, role), role=role, spec=spec)


def _ingress(w: JobBlueprint, role: Role) -> list[Json]:
    rules: list[Json] = []
    for port, callers in _by_port(_of_job(w, calls_to(*w.hosted(role)))).items():
        peers = [peer for who in dict.fromkeys(call.caller for call in callers) for peer in _callers(w, who)]
        if any(peer == {} for peer in peers):
            rules.append(_ports(port))  # anybody
        elif peers:
            rules.append({"from": peers, **_ports(port)})
    return rules


def _callers(w: JobBlueprint, caller: Role | Outsider) -> list[Json]:
    """The pods behind a caller; `[{}]` is anybody, `[]` nobody."""
    match caller:
        case Outsider.OPERATOR if not w.operator_namespace:
            return [{}]  # it comes through the nodes from somewhere; the token still decides
        case Outsider.OPERATOR:
            home = {"matchLabels": {NAMESPACE_NAME: w.operator_namespace}}
            return [{"namespaceSelector": home, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}}]
        case Outsider.MONITORING:
            if w.metrics_from is None:
                return []
            return [{"namespaceSelector": {"matchLabels": dict(w.metrics_from)} if w.metrics_from else {}}]
        case Outsider.AGENTS:
            return [{"podSelector": {"matchLabels": {names.LABEL_AGENTS_OF: w.name}}}]
        case Outsider.VIEWERS:
            return [{"namespaceSelector": {"matchLabels": {names.LABEL_VIEWERS: "allowed"}}}]
        case _:
            return [{"podSelector": {"matchLabels": names.selector(w.name, caller)}}] if caller in w.roles else []


def _egress(w: JobBlueprint, role: Role) -> list[Json]:
    row = spec_of(role)
    if row.sealed:
        return []
    if row.asks_api_server:
        return [{"ports": [{"protocol": "TCP", "port": port} for port in _API_SERVER_PORTS]}]
    reach = w.runtime.network_policy.egress.model_dump(by_alias=True).get(row.template_key, "Job")
    if reach == "Open":
        return [{}]
    rules: list[Json] = [_dns()]
    for port, calls in _by_port(_of_job(w, calls_from(*w.hosted(role)))).items():
        present = [callee for callee in dict.fromkeys(call.callee for call in calls) if callee in w.roles]
        if present:
            peers = [{"podSelector": {"matchLabels": names.selector(w.name, callee)}} for callee in present]
            rules.append({"to": peers, **_ports(port)})
    if row.redis_login is not None and w.resolved.redis_urls:
        rules.append({"ports": [{"protocol": "TCP", "port": port} for port in _EXTERNAL_REDIS_PORTS]})
    spec = w.resolved.spec
    teacher = spec.algorithm.teacher if role is Role.TRAINER and spec.is_rl else None  # which may be served
    collector = spec.observability.traces if role in _TRACED else None
    for dialled in (teacher, collector):
        if dialled is not None and dialled.endpoint is not None:
            rules += _service(dialled.endpoint)
    return rules


def _service(url: str) -> list[Json]:
    """The way to an address where that is a Service of this cluster: its namespace, its port."""
    address = urlsplit(url)
    _, *rest = (address.hostname or "").split(".")
    if len(rest) != 1 and rest[1:2] != ["svc"]:
        return []  # outside: who may leave the cluster is the platform's to say
    home = {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: rest[0]}}}
    return [{"to": [home], **_ports(address.port or _WEB_PORTS[address.scheme])}]


def _of_job(w: JobBlueprint, listed: "list[NetworkCall]") -> "list[NetworkCall]":
    ways = {"": True, "group": w.resolved.spec.weights_by_group, "fetch": w.resolved.spec.servers_fetch}
    return [placed for call in listed if ways[call.only] for placed in _placed(w, call)]


def _placed(w: JobBlueprint, call: "NetworkCall") -> "list[NetworkCall]":
    """The call where caller and callee are: servers may be in the trainer's pod, each at ports of its own."""
    if Role.GENERATION not in w.hosted(Role.TRAINER) or Role.GENERATION not in (call.caller, call.callee):
        return [call]
    if call.caller is Role.GENERATION:
        return [replace(call, caller=Role.TRAINER)]
    there = replace(call, callee=Role.TRAINER)
    purpose = next((name for name, port in names.PORT_NUMBERS.items() if port == call.port), None)
    if purpose is None:
        return [there]
    servers = range(w.job.spec.generation.replicas)
    return [replace(there, port=names.ports_beside_trainer(index)[purpose]) for index in servers]


def _by_port(calls: "list[NetworkCall]") -> "dict[int | None, list[NetworkCall]]":
    found: dict[int | None, list[NetworkCall]] = {}
    for call in calls:
        found.setdefault(call.port, []).append(call)
    return found


def _ports(port: int | None) -> Json:
    """A rule's ports; all when None."""
    return {} if port is None else {"ports": [{"protocol": "TCP", "port": port}]}


def _dns() -> Json:
    """Anywhere: a node's own DNS cache is no pod."""
    ports = [_DNS_PORT, _POD_DNS_PORT]
    return {"ports": [{"protocol": protocol, "port": port} for port in ports for protocol in ("TCP", "UDP")]}


@dataclass(frozen=True)
class NetworkCall:
    """`caller` dials `callee` on a port. No port: any, in both directions."""

    caller: Role | Outsider
    callee: Role
    port: int | None
    why: str
    only: str = ""  # as the caller's
    methods: tuple[str, ...] = ()  # that the caller's token opens there


def calls() -> list[NetworkCall]:
    """Every call, by callee; the operator's and monitoring's to every role last."""
    found = []
    for role, row in ROLE_SPECS.items():
        for caller in row.called_by:
            port = names.PORT_NUMBERS[caller.port] if caller.port else None
            found.append(NetworkCall(caller.who, role, port, caller.why, caller.only, caller.methods))
    why, launched = "status, restarts, draining", [role for role, row in ROLE_SPECS.items() if row.supervised]
    scraped = [role for role, row in ROLE_SPECS.items() if "metrics" in row.ports]
    found += [NetworkCall(Outsider.OPERATOR, at, names.LAUNCHER_PORT, why, methods=LAUNCHER_METHODS) for at in launched]
    return found + [NetworkCall(Outsider.MONITORING, role, names.METRICS_PORT, "metrics") for role in scraped]


def calls_to(*roles: Role) -> list[NetworkCall]:
    """Who may call these roles."""
    return [call for call in calls() if call.callee in roles]


def calls_from(*roles: Role) -> list[NetworkCall]:
    """Whom these roles may call, by port and name: a new role must not reorder the policies of jobs that run."""
    found = [call for call in calls() if call.caller in roles]
    return sorted(found, key=lambda call: (call.port is None, call.port or 0, call.callee))


def as_markdown() -> str:
    """The table of the security page."""
    rows = ["| who | calls | port | for | methods |", "|---|---|---|---|---|"]
    for call in calls():
        methods = ", ".join(f"`{method}`" for method in call.methods)
        rows.append(f"| {call.caller} | {call.callee} | {call.port or 'any'} | {call.why} | {methods} |")
    return "\n".join(rows) + "\n"
