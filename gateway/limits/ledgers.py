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
        before: the ledgers of a configuration that this one follows; what is counted as before goes on with them.
    """

    def __init__(self, configured: Mapping[str, Sequence[Limit]], before: "Ledgers | None" = None) -> None:
        self._configured = {name: tuple(limits) for name, limits in configured.items()}
        self._old: tuple[dict[str, Ledger], dict[str, tuple[Limit, ...]]] = ({}, {})
        if before is not None:
            self._old = (before._ledgers, before._configured)
        self._ledgers: dict[str, Ledger] = {name: self._made(name) for name in configured}
        self._implied: dict[tuple[str, str | None, str], str] = {} if before is None else dict(before._implied)

    def __getitem__(self, name: str) -> Ledger:
        return self._ledgers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ledgers)

    def __len__(self) -> int:
        return len(self._ledgers)

    def named(self, name: str) -> str:
        """A quota that a replica names, whether or not its limits are configured."""
        if name not in self._ledgers:
            self._ledgers[name] = self._made(name)
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
            taken = {*self._ledgers, *self._implied.values()}
            while name in taken:  # another key, or a path of the same host
                number += 1
                name = f"{host}/{model}#{number}"
            self._implied[counted] = name
        return self.named(self._implied[counted])

    def _made(self, name: str) -> Ledger:
        """The ledger of before if its configured limits are the same, else a new one."""
        ledgers, configured = self._old
        limits = self._configured.get(name, ())
        return ledgers[name] if name in ledgers and configured.get(name, ()) == limits else Ledger(limits)
