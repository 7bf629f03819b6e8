"""Checks the table [fair_share]: of metasched.toml, or of a file for the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.config.settings import ConfigError
from metasched.config.tables import FairShareTable
from metasched.model.fair_share import FairShareSettings, ShareAccount, ShareTree


def read_fair_share(
    table: FairShareTable, clusters: Sequence[str], path: object
) -> FairShareSettings:
    """Return the shares of the site.

    ConfigError for shares in two places, an unknown cluster, or accounts that form no tree.
    """
    location = f"{path}, [fair_share]"
    own_keys = [key for key in ("shares", "users", "default") if key in table.model_fields_set]
    if table.shares_from is not None:
        if own_keys:
            raise ConfigError(
                f"both shares_from and {own_keys[0]}, {location}; remove one of the two"
            )
        if table.shares_from not in clusters:
            remedy = f"clusters are {', '.join(clusters)}" if clusters else "there are no clusters"
            raise ConfigError(
                f'shares_from = "{table.shares_from}", {location}; write the name of a cluster, '
                f"{remedy}"
            )
    try:
        tree = ShareTree(
            accounts=tuple(
                ShareAccount(
                    name=name,
                    parent=account.parent,
                    weight=account.weight,
                    users=account.users,
                    other_users=account.other_users,
                )
                for name, account in table.shares.items()
            ),
            users=table.users,
            default=table.default,
        )
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise ConfigError(f"{problem}, {location}; {fix}") from None
    return FairShareSettings(
        half_life=table.half_life, tree=tree, shares_from=table.shares_from or ""
    )
