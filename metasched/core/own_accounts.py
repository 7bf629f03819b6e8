"""Metasched's names of a manager's accounts, by user: the inverse of a cluster's maps. Pure."""

from __future__ import annotations

from metasched.model.cluster import Cluster


class OwnAccounts:
    """Our names of the accounts of a cluster's manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._of_all: dict[str, str] = {
            theirs: ours
            for ours, theirs in sorted(cluster.maps.get("account", {}).items())
            if ours != "*"
        }
        self._of_user: dict[tuple[str, str], str] = {}  # by (the manager's name, user)
        self._of_others: dict[str, list[str]] = {}  # those with an entry for all other users
        self._by_user = cluster.user_accounts
        for ours, by_user in sorted(cluster.user_accounts.items()):
            for user, theirs in by_user.items():
                if user == "*":
                    self._of_others.setdefault(theirs, []).append(ours)
                else:
                    self._of_user[theirs, user] = ours

    def name_of(self, account: str, user: str) -> str:
        """Return our name of a manager's account that a user charges; its own without a mapping.

        Of several, an entry of the user himself precedes.
        """
        if (ours := self._of_user.get((account, user))) is not None:
            return ours
        for ours in self._of_others.get(account, ()):
            if user not in self._by_user[ours]:  # else he has another account there
                return ours
        return self._of_all.get(account, account)
