"""The settings of a daemon that has waited for its database, perhaps for weeks, as a standby.

Its files may have changed, and another daemon may have taken that over, and put a policy in force.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from metasched.config.reading import reload_settings, scheduled_policy_mistakes
from metasched.config.settings import ConfigError, Settings
from metasched.db.ledger import Ledger
from metasched.errors import UserError
from metasched.model.reservation import OPEN_STATES, ReservationState

log = logging.getLogger("metasched")


def settings_after_wait(settings: Settings, ledger: Ledger) -> Settings:
    """Return the settings that the files give now, except keys that only a restart can change.

    If they cannot be used, the settings stay, and the newest version of the policy: the file that
    was read at the start may be older than it.
    """
    try:
        changed, restart_keys = reload_settings(settings)
        check_reservation_units(changed, ledger)
    except UserError as error:
        log.error("the configuration that was read at the start stays in force: %s", error)
        newest, origin = ledger.policy_in_force(), settings.policy_origin
        if newest is not None:
            origin = replace(origin, digest=newest.site_digest)
        return replace(settings, policy_origin=origin)
    if restart_keys:
        log.warning("restart needed for: %s", ", ".join(restart_keys))
    return changed


def log_scheduled_mistakes(settings: Settings) -> frozenset[str]:
    """Log why policies of the calendar cannot be put in force. Return these mistakes."""
    mistakes = [str(mistake) for mistake in scheduled_policy_mistakes(settings)]
    for mistake in mistakes:
        log.error("a policy of the calendar cannot be put in force: %s", mistake)
    return frozenset(mistakes)


def check_reservation_units(settings: Settings, ledger: Ledger) -> None:
    """Raise ConfigError if an open reservation has another unit than its cluster.

    Its size would be interpreted in the new unit.
    """
    settings_by_name = {entry.cluster.name: entry for entry in settings.clusters}
    for reservation in ledger.reservations_open_since(time.time()):
        entry = settings_by_name.get(reservation.cluster)
        if entry is None or reservation.state not in OPEN_STATES:
            continue
        confirmed = reservation.state is ReservationState.CONFIRMED
        nodes_pending = entry.cluster.binds_late and confirmed
        if entry.capabilities.reserves_named_nodes != bool(reservation.nodes or nodes_pending):
            unit = "nodes" if reservation.nodes else "processors, or of nodes to be chosen late"
            raise ConfigError(
                f"reservation {reservation.id} is of {unit}, {settings.config_path}, "
                f'cluster "{reservation.cluster}"; '
                "put its reservation_unit and binding back until it is over"
            )
