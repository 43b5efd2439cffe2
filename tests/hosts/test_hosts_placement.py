"""Which host a row is placed on, and the addresses that follow."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from areal.admit.resolve import resolve
from areal.errors import ConfigError
from areal.hosts.placement import Host, HostPlan, RowPlace, place, resolve_for_hosts
from areal.plan import ResolvedJob
from areal.plan.cluster_names import Role
from areal.plan.roles import RoleInstance, role_instances
from areal.spec.load import job_from
from areal.yaml_file.document import read_document
from support.tiny_job import make_tiny_job

HOSTS = [Host("a", "10.0.0.1", 6818, 8, 4), Host("b", "10.0.0.2", 6818, 8, 4), Host("c", "10.0.0.3", 6818, 8, 4)]


def rows(servers: int = 3, workers: int = 2) -> list[RoleInstance]:
    single = [RoleInstance(str(role), role, 0) for role in (Role.REDIS, Role.REWARD, Role.CONTROLLER)]
    many = [RoleInstance(f"generation-{index}", Role.GENERATION, index) for index in range(servers)]
    many += [RoleInstance(f"worker-{index}", Role.WORKER, index) for index in range(workers)]
    return [*single, *many, RoleInstance("trainer", Role.TRAINER, 0)]


def where(placed: dict[str, RowPlace]) -> dict[str, str]:
    return {name: ",".join(at.hosts) for name, at in placed.items()}


def test_what_no_other_host_has_is_on_the_first_and_the_rest_is_spread():
    found = where(place(rows(), HOSTS))
    assert {found[name] for name in ("redis", "controller", "trainer")} == {"a"}
    spread = [
        found[name] for name in ("reward", "generation-0", "generation-1", "generation-2", "worker-0", "worker-1")
    ]
    assert sorted(spread) == ["b", "b", "b", "c", "c", "c"]


def test_one_host_has_everything():
    assert set(where(place(rows(), HOSTS[:1])).values()) == {"a"}


def test_a_gang_has_the_first_hosts_and_too_few_hosts_are_refused():
    assert where(place(rows(), HOSTS, gang=2))["trainer"] == "a,b"
    with pytest.raises(ConfigError, match="3 hosts have no place for trainer"):
        place(rows(), HOSTS, gang=4)


def test_no_gpu_is_given_twice():
    placed = place(rows(servers=4), HOSTS, gpus={Role.TRAINER: 4, Role.GENERATION: 2}, gang=1)
    assert placed["trainer"] == RowPlace(("a",), (0, 1, 2, 3))
    given = [(at.hosts[0], number) for at in placed.values() for number in at.gpus]
    assert len(given) == len(set(given)) == 12
    with pytest.raises(ConfigError, match="no place for generation-4"):
        place(rows(servers=5), HOSTS, gpus={Role.TRAINER: 4, Role.GENERATION: 2})


def test_a_lost_host_s_rows_move_and_no_other_and_no_gpu_changes_hands():
    gpus = {Role.GENERATION: 1}
    before = place(rows(), HOSTS, gpus=gpus)
    after = place(rows(), [HOSTS[0], HOSTS[2]], gpus=gpus, earlier=before)
    assert {name for name in before if before[name] != after[name]} == {
        name for name, at in before.items() if at.hosts == ("b",)
    }
    given = [(at.hosts[0], number) for at in after.values() for number in at.gpus]
    assert len(given) == len(set(given)) == 3
    assert all(at.hosts[0] in ("a", "c") for at in after.values())


@pytest.fixture
def resolved(tmp_path: Path) -> ResolvedJob:
    job = job_from(read_document(make_tiny_job(tmp_path)), ())
    return resolve(job, run_dir=tmp_path / "run", base_dir=tmp_path)


def test_each_endpoint_gets_its_row_s_address_and_keeps_its_port(resolved):
    placed = place(role_instances(resolved.job, resolved.verifier), HOSTS[:2])
    found = resolve_for_hosts(resolved, placed, HOSTS[:2])
    port = {row: ports.get("grpc") for row, ports in resolved.ports.items()}
    assert found.endpoints.controller == f"10.0.0.1:{port['controller']}"
    assert found.endpoints.redis == f"10.0.0.1:{resolved.ports['redis']['main']}"
    assert found.endpoints.reward_custom == f"10.0.0.2:{port['reward-custom']}"
    assert found.endpoints.rendezvous is None
    assert found.bind == "0.0.0.0"
    assert resolve_for_hosts(found, placed, [HOSTS[0], HOSTS[1]]).endpoints == found.endpoints


def test_a_gang_of_several_hosts_meets_at_the_first(resolved):
    placed = place(role_instances(resolved.job, resolved.verifier), HOSTS[:2], gang=2)
    found = resolve_for_hosts(resolved, placed, HOSTS[:2])
    assert found.endpoints.rendezvous == f"10.0.0.1:{resolved.ports['trainer']['rendezvous']}"


def test_servers_listen_on_the_only_address_there_is(resolved):
    here = [Host("n0", "127.0.0.1", 1), Host("n1", "127.0.0.1", 2)]
    found = resolve_for_hosts(resolved, place(role_instances(resolved.job, resolved.verifier), here), here)
    assert found.bind == "127.0.0.1"


def test_the_plan_s_file_reads_as_it_was_written(tmp_path):
    plan = HostPlan({host.name: host for host in HOSTS}, place(rows(), HOSTS, gpus={Role.TRAINER: 2}), ("env", "-i"))
    (tmp_path / "plan.json").write_bytes(orjson.dumps(plan))
    assert HostPlan.load(tmp_path / "plan.json") == plan
    assert plan.of("trainer") == HOSTS[:1]
