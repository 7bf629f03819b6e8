"""Reservations of processors on a real Slurm cluster: behaviour specific to Slurm."""

from __future__ import annotations

import json

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site, reserve
from tests.e2e.reservable_clusters import SlurmReservations
from tests.harness.slurm import ClusterSpec, SlurmSite, missing

ON_PROCESSORS = pytest.mark.parametrize("reservable", ["slurm-processors"], indirect=True)
IN_AN_HOUR = ("--start", "+1h", "--duration", "10m")
WITHOUT_CORES = ClusterSpec(
    "sigma",
    "s",
    nodes=1,
    cpus=4,
    settings=("SelectType=select/linear", "SelectTypeParameters=CR_Memory"),
)


@ON_PROCESSORS
def test_a_reservation_that_an_admin_made_smaller_is_replaced(
    cluster: SlurmReservations, reserving_site: Site
) -> None:
    """The replacement with another name is created first: the owner always has a reservation."""
    site = reserving_site
    id = reserve(site, "--size", "3", *IN_AN_HOUR)["reservation"]
    [name] = cluster.reservations()
    site.until(lambda: cluster.locations_of(id))
    cluster.delete_reservation(name)
    arguments = ("StartTime=now+60minutes", "Duration=10", "Users=root", "CoreCnt=1")
    cluster.slurm.run("scontrol", "create", "reservation", f"ReservationName={name}", *arguments)
    site.until(lambda: [*cluster.reservations()] == [f"{name}-again"])
    site.until(lambda: sum(map(len, cluster.cores_of(cluster.show()).values())) == 3)
    assert site.reservation(id)["state"] == "bound"


@pytest.mark.slow("a controller is started again without its nodes, then with them")
@ON_PROCESSORS
def test_what_slurm_lost_is_created_again_once_the_controller_has_heard_from_its_nodes(
    cluster: SlurmReservations, reserving_site: Site
) -> None:
    """Until its nodes have registered, Slurm finds no cores."""
    site = reserving_site
    reservation = reserve(site, "--size", "3", *IN_AN_HOUR)
    [name] = cluster.reservations()
    for node in cluster.slurm.nodes:
        cluster.slurm.kill_node(node)
    cluster.slurm.stop_controller()
    for state_file in ("resv_state", "node_state"):
        for saved in (cluster.slurm.folder / "state").glob(f"{state_file}*"):
            saved.unlink()
    cluster.slurm.start_controller(wait=False)
    site.until(lambda: "not created" in site.log_tail())
    assert site.reservation(reservation["reservation"])["state"] == "confirmed"
    for node in cluster.slurm.nodes:
        cluster.slurm.start_node(node)
    cluster.slurm.wait_ready()
    site.until(lambda: [*cluster.reservations()] == [name])
    site.until(lambda: site.reservation(reservation["reservation"])["state"] == "bound")


@pytest.mark.slow("starts a daemon five times")
@ON_PROCESSORS
def test_the_daemon_refuses_another_unit_while_a_reservation_is_open(
    cluster: SlurmReservations, reserving_site: Site
) -> None:
    """Otherwise two processors would become two nodes, or a node would become a processor."""
    site = reserving_site
    processors = site.config.read_text()
    nodes = processors.replace('"processor"', '"node"')
    for before, after, was in ((processors, nodes, "processors"), (nodes, processors, "nodes")):
        reservation = reserve(site, "--size", "2", *IN_AN_HOUR)
        id = reservation["reservation"]
        site.stop()
        shown = [*cluster.reservations()]
        site.config.write_text(after)
        refusal = site.error("serve", code=2)
        assert refusal.startswith(f"reservation {id} is of {was}")
        assert 'cluster "rho"; put its reservation_unit and binding back' in refusal
        assert [*cluster.reservations()] == shown
        site.config.write_text(before)
        site.start()
        site.run("reservation", "cancel", str(id))
        site.until(lambda: cluster.reservations() == {})
        site.stop()
        site.config.write_text(after)
        site.start()


@pytest.mark.slow("boots a cluster, starts a daemon twice, and runs doctor twice")
def test_a_cluster_that_reserves_no_cores_names_the_setting(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path_factory.mktemp("sigma"), [WITHOUT_CORES]) as slurm:
        site.configure(SlurmReservations(slurm["sigma"], "processor").table(site.folder))
        site.start()
        refusal = site.error("reserve", "--size", "1", "--start", "+1h", "--duration", "1h", code=3)
        remedy = 'its SelectType reserves no cores; write reservation_unit = "node"'
        assert refusal.startswith(f"sigma cannot keep it: its manager refused: {remedy}")
        findings = {f["check"]: f for f in json.loads(site.run("doctor", "--json", code=1).stdout)}
        manager = findings["manager of sigma"]
        assert manager["text"] == "it runs select/linear, which reserves no processors"
        assert manager["mend"].startswith('write reservation_unit = "node"')
        site.stop()
        site.config.write_text(site.config.read_text().replace('"processor"', '"node"'))
        site.start()
        site.run("doctor")
        assert site.stop() == 0
