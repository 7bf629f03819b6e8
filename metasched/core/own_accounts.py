"""Metasched's names of a manager's accounts, by user: the inverse of a cluster's maps. Pure."""

from __future__ import annotations

from metasched.model.cluster import Cluster


class OwnAccounts:
    """Our names of the accounts of a cluster's manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._of_all: dict[str, str] = {
            managers_name: account
            for account, managers_name in sorted(cluster.maps.get("account", {}).items())
            if account != "*"
        }
        self._of_user: dict[tuple[str, str], str] = {}  # by (the manager's name, user)
        self._of_others: dict[str, list[str]] = {}  # those with an entry for all other users
        self._by_user = cluster.user_accounts
        for account, by_user in sorted(cluster.user_accounts.items()):
            for user, managers_name in by_user.items():
                if user == "*":
                    self._of_others.setdefault(managers_name, []).append(account)
                else:
                    self._of_user[managers_name, user] = account

    def name_of(self, managers_name: str, user: str) -> str:
        """Return our name of a manager's account that a user charges; its own without a mapping.

        Of several, an entry of the user himself precedes.
        """
        if (account := self._of_user.get((managers_name, user))) is not None:
            return account
        for account in self._of_others.get(managers_name, ()):
            if user not in self._by_user[account]:  # else he has another account there
                return account
        return self._of_all.get(managers_name, managers_name)
