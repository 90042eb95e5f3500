"""The ledgers of a gateway, by the name of their quota; replicas that are counted together get the same one.

A quota has the name that the configuration gives it. A replica of a provider that names none is counted with all others
of the same address, key and upstream model: that is what providers' limits are about. Built once, at the start.
"""

from collections.abc import Iterator, Mapping, Sequence

from gateway.limits.bucket import Limit
from gateway.limits.ledger import Ledger


class Ledgers(Mapping[str, Ledger]):
    """Every ledger by its quota's name.

    Args:
        configured: quotas that the configuration states limits of.
    """

    def __init__(self, configured: Mapping[str, Sequence[Limit]]) -> None:
        self._ledgers = {name: Ledger(limits) for name, limits in configured.items()}
        self._implied: dict[tuple[str, str | None, str], str] = {}

    def __getitem__(self, name: str) -> Ledger:
        return self._ledgers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ledgers)

    def __len__(self) -> int:
        return len(self._ledgers)

    def named(self, name: str) -> str:
        """A quota that a replica names, whether or not its limits are configured."""
        self._ledgers.setdefault(name, Ledger())
        return name

    def implied(self, base_url: str, host: str, key: str | None, model: str) -> str:
        """The quota of a replica that names none.

        Args:
            base_url: where it is.
            host: of base_url, for the quota's name.
            key: sent to it; never part of the name.
            model: what it calls the model.
        """
        counted = (base_url.rstrip("/"), key, model)
        if counted not in self._implied:
            name, number = f"{host}/{model}", 1
            while name in self._ledgers:  # another key, or a path of the same host
                number += 1
                name = f"{host}/{model}#{number}"
            self._implied[counted] = self.named(name)
        return self._implied[counted]
